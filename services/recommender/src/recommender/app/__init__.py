"""Use cases: what the service does with facts and requests."""
