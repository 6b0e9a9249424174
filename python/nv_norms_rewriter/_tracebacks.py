"""Has tracebacks of a program's own errors end where they do without this package.

TensorFlow and Keras leave their own frames out of what they raise, by where a frame's file lies.
Functions of ours that stand between theirs would show as the last ones, where an error seems to
come from.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_FOLDER = str(Path(__file__).absolute().parent) + os.sep
_FILTERS = (
    "tensorflow.python.util.traceback_utils",
    "keras.src.utils.traceback_utils",
    "tf_keras.src.utils.traceback_utils",
)


def leave_us_out() -> None:
    """Of the tracebacks that those filter which are imported by now."""
    for name in _FILTERS:
        module = sys.modules.get(name)
        paths = getattr(module, "_EXCLUDED_PATHS", None)
        if isinstance(paths, tuple) and _FOLDER not in paths:
            module._EXCLUDED_PATHS = (*paths, _FOLDER)  # type: ignore[union-attr]
