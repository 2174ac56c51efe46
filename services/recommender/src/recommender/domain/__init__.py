"""Models that learn from completed trips: values in, values out; no clock, no I/O."""
