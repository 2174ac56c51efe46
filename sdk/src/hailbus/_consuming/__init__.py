"""Consuming: from a read to a commit. One failure path under key lanes, batches and transactions."""
