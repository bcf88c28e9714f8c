"""Fuzzing: whatever a stranger or another process may send is thrown at who reads it.

``python -m tests.fuzz TARGET --seconds N --seed S`` runs one target; see :mod:`tests.fuzz.__main__`.
"""
