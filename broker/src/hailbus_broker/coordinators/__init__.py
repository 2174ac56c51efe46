"""Groups and transactions: state machines that decide and touch nothing."""
