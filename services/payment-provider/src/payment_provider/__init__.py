"""A stand-in for a payment provider: authorisations, captures, releases and refunds over HTTP, with faults to order."""
