"""Every spelling alone: dx, dgamma and dbeta with the forward, whatever is known of the shape."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from training_norms import (
    ALL,
    FOUR,
    GROUP_FIRST,
    LAYER,
    LAYER_AXES,
    LLAMA,
    RMS,
    TF_KERAS_LAYER,
    TF_KERAS_MIDDLE,
    Norm,
)
from training_steps import check, normal, step_of
from training_traces import optimized

import nv_norms_rewriter


def _case(norm: Norm, known: str, slow: bool):
    return pytest.param(
        norm, known, id=f"{norm.name}-{known}", marks=[pytest.mark.slow] if slow else []
    )


# Parameters along an axis of unknown size: these layers cannot be built so.
_KNOWN_SIZES = (GROUP_FIRST, LAYER_AXES, TF_KERAS_MIDDLE)
_CASES = [
    *(_case(norm, "batch", slow=False) for norm in ALL),
    *(_case(norm, "static", slow=norm not in FOUR) for norm in ALL),
    *(_case(norm, "channels", slow=norm not in FOUR) for norm in ALL if norm not in _KNOWN_SIZES),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("norm,known", _CASES)
def test_all_gradients(rng, norm: Norm, known: str) -> None:
    x, dy, values, layer, variables = norm.draw(rng)
    exact = [norm.forward(x, values), *norm.backward(dy, x, values)]
    make = step_of(layer, variables, x, dy, known)
    check(make, [x, dy], exact, {norm.kind: 1}, {norm.kind: 1})


@pytest.mark.parametrize("norm", [*FOUR, TF_KERAS_LAYER], ids=lambda norm: norm.name)
def test_all_gradients_in_mixed_precision(rng, norm: Norm) -> None:
    """x, y and dy in float16: dx is rounded to it once, as in the stock graph."""
    x, dy = (normal(rng, *norm.shape).astype(np.float16) for _ in range(2))
    values = [np.float32(value.astype(np.float16)) for value in norm.parameters(rng)]
    layer, variables = norm.build(values, "mixed_float16")
    exact = [norm.forward(x, values), *norm.backward(dy, x, values)]
    make = step_of(layer, variables, x, dy)
    check(make, [x, dy], exact, {norm.kind: 1}, {norm.kind: 1}, units=1.0, dtype=np.float16)


@pytest.mark.parametrize("norm", [LAYER, RMS, LLAMA], ids=lambda norm: norm.name)
def test_broadcast_gradient_args_that_nothing_folds(rng, norm: Norm) -> None:
    """Where the rank is not known, which axes a gradient is summed over is told when it runs."""
    x, dy, values, layer, variables = norm.draw(rng)

    @tf.function(experimental_attributes={"_noinline": True})
    def hidden(x):
        return tf.identity(x)

    make = step_of(lambda x: layer(hidden(x)), variables, x, dy)

    def left() -> int:
        graph = optimized(make().get_concrete_function(), [x, dy])
        return sum(node.op == "BroadcastGradientArgs" for node in graph.node)

    with nv_norms_rewriter.disabled():
        assert left() >= 1
    assert left() == 0
    exact = [norm.forward(x, values), *norm.backward(dy, x, values)]
    check(make, [x, dy], exact, {norm.kind: 1}, {norm.kind: 1})
