"""Graphs that must be fused, graphs that must not, and the harness that checks both.

A case is one line of a table in `cases/`. `python -m tests.corpus.run --help` runs them by hand.
"""

import sys
from pathlib import Path

_TESTS = str(Path(__file__).resolve().parent.parent)
if _TESTS not in sys.path:
    sys.path.insert(0, _TESTS)  # for the float64 oracle
