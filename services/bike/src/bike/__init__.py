"""Bike hire: a second producer of the example."""
