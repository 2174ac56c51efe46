"""HTTP, the provider and events."""
