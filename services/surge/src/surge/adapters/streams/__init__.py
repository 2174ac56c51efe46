"""Faust agents, tables and the loop that settles what they read."""
