"""One module per streaming query or task: wiring only."""
