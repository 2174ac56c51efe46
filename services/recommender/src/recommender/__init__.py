"""Recommends destinations, pooled rides and pickup spots from completed rides."""
