"""Fused gradients against central differences of the loss, which need no formula of a gradient."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from training_norms import ALL, FOUR, Norm
from training_steps import assert_counts, flat, step_of

import nv_norms_rewriter
import oracle

# The error of a central difference in float64: its step's square, and rounding over its step.
STEP = 1e-5
DIFFERENCE = 1e-8
# Sums over a few dozen elements, in units of the largest.
UNITS = {"float64": 64, "float32": 64}


def _differences(norm: Norm, x: np.ndarray, dy: np.ndarray, values) -> list[np.ndarray]:
    """dx, and the gradients of the parameters, from the layer's own forward op in float64.

    Examples do not meet in a norm: each element of x is moved in an example of its own, so that one
    call answers for all of them.
    """
    layer, variables = norm.build(values, "float64")
    forward = tf.function(layer, input_signature=[tf.TensorSpec([None, *x.shape[1:]], tf.float64)])

    def loss(*values) -> float:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value - 1 if norm.one_plus else value)
        return float((forward(x).numpy() * dy).sum())

    parameters = oracle.central_differences(loss, values, STEP)
    for variable, value in zip(variables, values, strict=True):
        variable.assign(np.float64(value) - 1 if norm.one_plus else value)
    size = x[0].size
    steps = STEP * np.eye(size).reshape(size, *x.shape[1:])
    dx = np.empty(x.shape)
    for example, dy_example, gradient in zip(x, dy, dx, strict=True):
        above, below = (forward(example + s * steps).numpy() for s in (1, -1))
        apart = ((above - below) * dy_example).reshape(size, -1).sum(1)
        gradient[...] = (apart / (2 * STEP)).reshape(example.shape)
    return [dx, *parameters]


@pytest.mark.parametrize("dtype", UNITS)
@pytest.mark.parametrize(
    "norm",
    [
        pytest.param(norm, id=norm.name, marks=[] if norm in FOUR else pytest.mark.slow)
        for norm in ALL
    ],
)
def test_gradients_are_the_difference_quotients(rng, norm: Norm, dtype: str) -> None:
    x, dy, values, *_ = norm.draw(rng)
    differences = _differences(norm, np.float64(x), np.float64(dy), values)
    layer, variables = norm.build(values, dtype)
    x, dy = x.astype(dtype), dy.astype(dtype)
    nv_norms_rewriter.clear_report()
    _, *gradients = flat(step_of(layer, variables, x, dy)()(x, dy))
    assert_counts(nv_norms_rewriter.report(), {norm.kind: 1}, {norm.kind: 1})
    for gradient, expected in zip(gradients, differences, strict=True):
        assert gradient.dtype == dtype and gradient.shape == expected.shape
        largest = np.abs(expected).max()
        bound = (UNITS[dtype] * np.finfo(dtype).eps + DIFFERENCE) * largest
        off = np.abs(gradient - expected).max()
        print(f"{off / largest:.2g} of the largest")
        assert off <= bound
