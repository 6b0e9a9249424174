"""What TensorFlow alone gives, to compare with."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import tensorflow as tf

import nv_norms_rewriter

Result = TypeVar("Result")


def stock(run: Callable[[], Result]) -> Result:
    """run() with the rewriter off and its tf.functions eager: to trace one takes far longer.

    But for functions that call tf.gradients, which TensorFlow has in graphs alone.
    """
    with nv_norms_rewriter.disabled():
        tf.config.run_functions_eagerly(True)
        try:
            return run()
        except RuntimeError as error:
            if "tf.gradients is not supported" not in str(error):
                raise
        finally:
            tf.config.run_functions_eagerly(False)
        return run()
