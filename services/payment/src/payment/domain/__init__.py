"""What a ride owes, and the next step towards it: plain Python."""
