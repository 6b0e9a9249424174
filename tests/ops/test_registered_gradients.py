"""tf.GradientTape through the fused ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import formulas
import numpy as np
import pytest
import tensorflow as tf
from support import DTYPES, random

import oracle
from nv_norms_rewriter import _gradients


@pytest.fixture(scope="module", autouse=True)
def registered(ops: Any) -> None:
    _gradients.register(ops)
    _gradients.register(ops)  # no harm


def call(
    ops: Any, kind: str, x: tf.Tensor, scale: list[Any], offset: list[Any], **rest: Any
) -> Any:
    op = getattr(ops, f"fused_{kind}_norm")
    return op(x=x, scale=scale, offset=offset, out_type=tf.float32, U=tf.float32, **rest)[0]


class Norm(NamedTuple):
    """One op on x of rank 4, and its formula."""

    kind: str
    attributes: dict[str, Any]
    formula: str
    reduced: list[int]
    params: list[int]

    def __str__(self) -> str:
        return f"{self.kind}-{self.attributes}"

    def parameter_shape(self, shape: Sequence[int]) -> list[int]:
        """Of gamma and beta, with 1 for the axes that they do not span."""
        return [shape[a] if a in self.params else 1 for a in range(4)]

    def gradient(self, dy: np.ndarray, x: np.ndarray, gamma: np.ndarray) -> Any:
        """dx, dgamma and dbeta, and the sizes of what they are sums of."""
        epsilon = float(np.float32(1e-3))  # the attribute's default
        arguments = (dy, x, gamma, self.reduced, self.params, epsilon, self.formula)
        return formulas.norm_gradient(*arguments), formulas.gradient_sizes(*arguments)


NORMS = [
    Norm("layer", {"axis": [-1]}, "center", [3], [3]),
    Norm("layer", {"axis": [1, 2]}, "center", [1, 2], [1, 2]),
    Norm("layer", {"axis": [-1], "subtract_mean": False}, "scale_only", [3], [3]),
    Norm("rms", {"axis": [-1]}, "rms", [3], [3]),
    Norm("instance", {"data_format": "N...C"}, "center", [1, 2], [3]),
    Norm("instance", {"data_format": "NC..."}, "center", [2, 3], [1]),
    Norm("group", {"data_format": "N...C", "groups": 1}, "center", [1, 2, 3], [3]),
    Norm("group", {"data_format": "NC...", "groups": 4}, "center", [2, 3], [1]),
]


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_tape(ops: Any, device: str, norm: Norm, graph: bool) -> None:
    x = random(51, (2, 4, 3, 5), DTYPES["float32"])
    shape = norm.parameter_shape(x.shape)
    gamma = random(52, shape, DTYPES["float32"])
    beta = random(53, shape, DTYPES["float32"])
    weight = random(54, x.shape, DTYPES["float32"])

    def run() -> list[tf.Tensor]:
        inputs = [tf.constant(v) for v in (x, gamma, beta)]
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            y = call(ops, norm.kind, inputs[0], inputs[1:2], inputs[2:], **norm.attributes)
            loss = tf.reduce_sum(y * weight)
        return tape.gradient(loss, inputs)

    with tf.device(device):
        actual = (tf.function(run, autograph=False) if graph else run)()
    for a, e, size in zip(actual, *norm.gradient(weight, x, gamma), strict=True):
        formulas.assert_close(a.numpy().reshape(e.shape), e, 8, size=size)
    assert actual[1].shape == gamma.shape and actual[2].shape == beta.shape


def test_only_what_is_there_gets_a_gradient(ops: Any, device: str) -> None:
    x = tf.constant(random(55, (2, 5), DTYPES["float32"]))
    with tf.device(device), tf.GradientTape() as tape:
        tape.watch(x)
        y = call(ops, "layer", x, [], [])
    assert tape.gradient(y, x).shape == x.shape


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_second_derivatives(ops: Any, device: str, norm: Norm, graph: bool) -> None:
    """Against central differences of the gradient's formula in float64."""
    x, weight, into = (random(seed, (2, 4, 3, 5), DTYPES["float32"]) for seed in (61, 62, 63))
    gamma = random(64, norm.parameter_shape(x.shape), DTYPES["float32"])
    beta = np.zeros_like(gamma)
    into_gamma, into_beta = (random(seed, gamma.shape, DTYPES["float32"]) for seed in (65, 66))

    def run() -> list[tf.Tensor]:
        inputs = [tf.constant(v) for v in (x, gamma, weight)]
        with tf.GradientTape() as outer:
            outer.watch(inputs)
            with tf.GradientTape() as inner:
                params = [*inputs[:2], tf.constant(beta)]
                inner.watch(params)
                y = call(ops, norm.kind, inputs[0], inputs[1:2], params[2:], **norm.attributes)
                loss = tf.reduce_sum(y * inputs[2])
            dx, dgamma, dbeta = inner.gradient(loss, params)
            sums = [dx * into, dgamma * into_gamma, dbeta * into_beta]
            total = tf.add_n([tf.reduce_sum(s) for s in sums])
        return outer.gradient(total, inputs)

    with tf.device(device):
        actual = (tf.function(run, autograph=False) if graph else run)()

    def total(x: np.ndarray, gamma: np.ndarray, weight: np.ndarray) -> float:
        (dx, dgamma, dbeta), _ = norm.gradient(weight, x, gamma)
        sums = (dx * into, dgamma.reshape(gamma.shape) * into_gamma)
        return sum(map(np.sum, sums)) + np.sum(dbeta.reshape(gamma.shape) * into_beta)

    differences = oracle.central_differences(total, [x, gamma, weight])
    for gradient, expected in zip(actual, differences, strict=True):
        np.testing.assert_allclose(gradient, expected, 2e-4, 2e-4 * np.abs(expected).max())
