"""The bike service's edges: HTTP and storage."""
