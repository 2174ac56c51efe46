"""Mutation testing: change the code that decides, one place at a time, and see whether a test fails.

cosmic-ray generates the mutants and keeps the results; this package chooses the mutants, the tests that judge each of
them, and runs them in forks of one warm interpreter inside a copy of the repository.
"""
