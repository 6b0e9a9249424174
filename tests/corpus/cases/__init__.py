"""The tables. Each module holds a list LINES."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from ..line import Line


def load(table: str) -> Sequence[Line]:
    """The lines of a table; importing it imports TensorFlow and the libraries that it needs."""
    return importlib.import_module(f"{__name__}.{table}").LINES
