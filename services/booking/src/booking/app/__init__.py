"""What booking does: one module per use case, decided in memory, stored and published by the adapters."""
