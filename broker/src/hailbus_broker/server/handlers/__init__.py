"""One module per group of APIs."""
