"""Where the dashboard meets the world."""
