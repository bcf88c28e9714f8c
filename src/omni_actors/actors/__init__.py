"""Actors on trio: supervised tasks with mailboxes, and processes that nothing survives."""
