"""Drives plans through booking's public HTTP API, the recommender's, and the SDK, in event time."""
