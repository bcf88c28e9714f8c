"""Handwritten digits: a text-to-image model that is trained on this machine in minutes (``models pull digits``)."""
