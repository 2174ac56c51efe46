"""The command `simulate`: campaigns of simulated worlds on all cores, and mutants of the broker for them to find."""
