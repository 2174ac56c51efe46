"""Booking's edges: HTTP, streams and storage."""
