"""Structured Streaming from topics to the lake: bronze, silver, gold."""
