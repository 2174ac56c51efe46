"""Requests from clients: connections in, responses out."""
