"""Any causal language model that transformers knows, as one stage."""
