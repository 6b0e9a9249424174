"""Fuses normalizations in ordinary functions that a tape outside of them differentiates.

TensorFlow then makes a forward and a backward function of the traced graph. Between them go all
tensors that the gradients of the single ops want, and what the backward function computes from
those arguments cannot be told from it alone. So the graph is rewritten before it is differentiated.
What runs without a tape, and what is saved, is another function, made before from the stock graph.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

from . import _trace

_outside = threading.local()


def install() -> None:
    """Has graphs rewritten before they are differentiated, once per process."""
    from tensorflow.python.eager.polymorphic_function import concrete_function

    # For tapes that record eagerly, and are neither persistent nor nested.
    eager = concrete_function._FirstOrderTapeGradientFunctions
    # For functions that are called in other functions.
    called = concrete_function._DelayedRewriteGradientFunctions
    make_pair, make_called_pair = (
        eager._forward_and_backward_functions,
        called._construct_forward_backward,
    )

    @functools.wraps(make_pair)
    def forward_and_backward(self: Any, inference_args: Any, input_tangents: Any) -> Any:
        if input_tangents:
            return make_pair(self, inference_args, input_tangents)
        _trace.before_gradient(self._func_graph)
        depth = getattr(_outside, "depth", 0)
        _outside.depth = depth + 1
        try:
            return make_pair(self, inference_args, input_tangents)
        finally:
            _outside.depth = depth

    @functools.wraps(make_called_pair)
    def construct(self: Any, *arguments: Any, **keywords: Any) -> Any:
        if getattr(_outside, "depth", 0):
            _trace.before_gradient(self._func_graph)
        return make_called_pair(self, *arguments, **keywords)

    eager._forward_and_backward_functions = forward_and_backward
    called._construct_forward_backward = construct
