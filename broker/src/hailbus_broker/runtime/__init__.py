"""The real world for the code that is decided without touching it: clock, disk, network, threads."""
