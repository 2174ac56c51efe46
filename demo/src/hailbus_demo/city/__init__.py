"""The city: tables derived from records, riders and drivers who live by them, and readers of recorded rides."""
