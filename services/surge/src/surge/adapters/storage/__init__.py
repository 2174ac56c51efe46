"""The worker's own database."""
