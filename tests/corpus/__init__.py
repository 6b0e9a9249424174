"""Graphs that must be fused, graphs that must not, and the harness that checks both.

A case is one line of a table in `cases/`. `python -m tests.corpus.run --help` runs them by hand.
"""
