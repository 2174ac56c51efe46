"""Use cases of surge: what is done with a fact, and at the end of each minute."""
