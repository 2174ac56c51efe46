"""One address in front of several booking processes: forwards each request to the region that owns it."""
