"""Demand, supply, surge multipliers and forecasts per H3 cell."""
