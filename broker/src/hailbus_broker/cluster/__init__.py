"""The cluster: what it consists of, as a log of records, and who decides about it."""
