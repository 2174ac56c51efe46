"""What the bike service does: one module per use case."""
