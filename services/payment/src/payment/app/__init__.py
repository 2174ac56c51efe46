"""What the saga does, free of the bus and of HTTP."""
