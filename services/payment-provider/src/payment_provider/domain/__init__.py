"""What the provider does with money: plain Python."""
