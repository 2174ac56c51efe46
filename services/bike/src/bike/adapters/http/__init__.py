"""The bike service's HTTP API."""
