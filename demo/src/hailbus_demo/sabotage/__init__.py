"""Does one fault to a running city on purpose, so that people can watch the ledger find it."""
