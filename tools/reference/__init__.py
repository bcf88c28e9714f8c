"""The generator of the reference pages: ``python -m tools.reference`` writes ``docs/reference/`` from the code.

Each module makes one page. ``tests/harness/test_reference.py`` compares the pages in the repository with what the
modules make, so that a page never says anything else than the code.
"""
