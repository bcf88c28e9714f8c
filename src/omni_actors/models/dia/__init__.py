"""Nari Labs' Dia: bytes of a dialogue in, DAC codes out, each codebook a little later than the one before."""
