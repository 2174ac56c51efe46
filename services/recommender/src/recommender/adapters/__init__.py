"""Where the service meets the world."""
