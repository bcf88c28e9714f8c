"""Telephone keys as sound: a pipeline of two stages without weights, to copy."""
