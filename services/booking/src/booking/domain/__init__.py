"""Quotes, rides, drivers and fares as values and decisions: plain Python."""
