"""Commands for people who work on hailbus."""
