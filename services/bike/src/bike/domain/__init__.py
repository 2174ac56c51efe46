"""Bikes and hires as values and decisions: plain Python."""
