"""Events in and out."""
