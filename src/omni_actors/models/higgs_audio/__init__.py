"""Boson AI's Higgs Audio v2: a language model with a second feed-forward for sound in each layer, and a codec."""
