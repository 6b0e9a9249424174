"""Fused ops under tf.vectorized_map and in jacobians: there they are TensorFlow's own ops.

TensorFlow computes all iterations of a loop at once by a rule for each op. Without one it leaves
the loop, and complains, or raises.
"""

from __future__ import annotations

import contextlib
from typing import Any

import tensorflow as tf

from . import _saving, _stock


def register() -> None:
    """Registers a rule for each fused op; a second call does nothing."""
    with contextlib.suppress(ImportError, AttributeError):  # another TensorFlow
        from tensorflow.python.ops.parallel_for import pfor

        for kind in _stock.ATTRIBUTES:
            for op in (kind, f"{kind}Grad"):
                with contextlib.suppress(KeyError):  # registered already
                    pfor.RegisterPFor(op)(_convert)


def _convert(pfor_input: Any) -> list[Any]:
    from tensorflow.python.ops.parallel_for import pfor

    inputs = [pfor_input.input(i) for i in range(pfor_input.num_inputs)]
    compute, _ = _saving.stock(pfor_input.op_type, pfor_input.op.node_def.attr)

    def iteration(stacked: list[tf.Tensor]) -> list[tf.Tensor]:
        parts = iter(stacked)
        return compute(*(next(parts) if each.is_stacked else each.t for each in inputs))

    stacked = [each.t for each in inputs if each.is_stacked]
    outputs = tf.vectorized_map(iteration, stacked, fallback_to_while_loop=False)
    return [pfor.wrap(output, True) for output in outputs]
