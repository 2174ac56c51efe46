"""Values and decisions of surge: plain state and arithmetic; no socket, no clock, no framework."""
