"""Writes every event of the bus to an audit log."""
