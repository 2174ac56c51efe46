"""Quotes and rides: the booking service of the example."""
