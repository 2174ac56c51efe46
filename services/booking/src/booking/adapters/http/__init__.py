"""Booking's HTTP API."""
