"""Mutation testing: change the code that decides, one place at a time, and see whether a test fails.

cosmic-ray generates the mutants and keeps the results; this package chooses the mutants, the tests that judge each of
them, and runs them in forks of one warm interpreter inside a copy of the repository.
"""

MADE_VARIABLE = "HAILBUS_TEST_MADE"
"""Names the folder that keeps what tests make once: the run without a mutant fills it, and later runs read it."""
