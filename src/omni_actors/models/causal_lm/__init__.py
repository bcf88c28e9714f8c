"""Causal language models known to transformers, as one stage."""
