"""The city page: hexagons, rides, event flow, lag and the ledger."""
