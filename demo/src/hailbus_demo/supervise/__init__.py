"""Starts the processes of the city, keeps them running, and stops them."""
