"""FLUX.1: from text, and edits (Kontext)."""
