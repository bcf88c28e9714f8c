"""A Markov chain of characters, with an engine of its own that serves it: an example to copy."""
