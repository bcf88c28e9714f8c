"""A Markov chain of characters, and an engine that serves the chain: an example to copy."""
