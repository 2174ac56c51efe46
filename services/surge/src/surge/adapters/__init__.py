"""What connects surge with the world."""
