"""The faults that a visitor of the city page can cause by a click."""
