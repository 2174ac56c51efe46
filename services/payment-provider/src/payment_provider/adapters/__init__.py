"""HTTP and storage."""
