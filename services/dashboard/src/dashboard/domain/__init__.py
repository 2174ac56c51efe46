"""What the page shows, as plain state fed by events: no clock, no I/O, every collection bounded."""
