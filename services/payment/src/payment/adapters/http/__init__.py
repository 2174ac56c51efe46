"""The HTTP API of payments."""
