"""One command that runs the city: broker, services, lake, rides and the ledger."""
