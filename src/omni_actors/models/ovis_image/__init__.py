"""Ovis-Image."""
