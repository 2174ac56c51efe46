"""The money of rides: a saga over a payment provider."""
