"""The built-in demo: speech and text in, text and speech out, from four small models."""
