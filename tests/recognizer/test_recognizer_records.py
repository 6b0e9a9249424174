"""What the report says of norms that are found: of which kind, how much of them is fused, once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import tensorflow as tf
from recognizer_graphs import check, moments, placeholder, stock_and_fused, trace

import nv_norms_rewriter
import oracle
from nv_norms_rewriter import rewrite

EPSILON = 1e-3


def _epsilon_outside(x: tf.Tensor, axes: Sequence[int]) -> tf.Tensor:
    mean, variance = moments(x, axes)
    return (x - mean) / (tf.sqrt(variance) + EPSILON)


def _in_groups(x: tf.Tensor, groups: int) -> tf.Tensor:
    shape = x.shape.as_list()
    split = tf.reshape(x, [*shape[:-1], groups, shape[-1] // groups])
    return tf.reshape(_epsilon_outside(split, [1, 2, 4]), shape)


def _root_mean_square(x: tf.Tensor) -> tf.Tensor:
    return x / (tf.sqrt(tf.reduce_mean(tf.square(x), -1, keepdims=True)) + EPSILON)


@pytest.mark.parametrize(
    ("norm", "shape", "kind"),
    [
        (lambda x: _epsilon_outside(x, [3]), (2, 6, 5, 8), "layer_norm"),
        (lambda x: _epsilon_outside(x, [1, 2, 3]), (2, 6, 5, 8), "layer_norm"),
        (lambda x: _epsilon_outside(x, [2]), (2, 6, 8), "layer_norm"),
        (lambda x: _epsilon_outside(x, [1, 2]), (2, 6, 5, 8), "instance_norm"),
        (lambda x: _epsilon_outside(x, [1]), (2, 6, 8), "instance_norm"),
        (lambda x: _in_groups(x, 4), (2, 6, 5, 8), "group_norm"),
        (_root_mean_square, (2, 6, 8), "rms_norm"),
        # A layer norm, or an instance norm with the channels before.
        (lambda x: _epsilon_outside(x, [2, 3]), (2, 6, 5, 8), "normalization"),
        (lambda x: _epsilon_outside(x, [2]), (2, 6, 5, 8), "normalization"),
    ],
)
def test_kind_of_what_is_refused(norm, shape: tuple[int, ...], kind: str) -> None:
    graph = trace(lambda: tf.identity(norm(placeholder("x", shape)), name="y"))
    (record,) = rewrite(graph, fetches=["y"])[1]
    assert (record.reason, record.kind) == ("no_output", kind)


def test_kind_of_what_is_not_known(rng) -> None:
    """The axes are not, as those of the mean and those of the variance differ."""

    def make() -> None:
        x = placeholder("x", (4, 6, 8))
        mean = tf.reduce_mean(x, -1, keepdims=True)
        square = tf.reduce_mean(tf.square(x - mean), [1, 2], keepdims=True)
        tf.multiply(x - mean, tf.math.rsqrt(square + EPSILON), name="y")

    (record,) = rewrite(trace(make), fetches=["y"])[1]
    assert (record.reason, record.kind) == ("moments_differ", "normalization")


def test_root_within_another_is_no_norm_of_its_own(rng) -> None:
    def make() -> None:
        x = placeholder("x", (4, 8))
        mean, variance = moments(x)
        deviation = tf.sqrt(variance)
        tf.divide(x - mean, tf.sqrt(tf.square(deviation) + EPSILON), name="y")

    x = rng.normal(size=(4, 8)).astype(np.float32)
    _, records = check(trace(make), {"x": x}, oracle.layer_norm(x, epsilon=EPSILON).y, 1)
    assert len(records) == 1


def test_root_within_another_that_is_read_beside_it(rng) -> None:
    """As the deviation itself it is a norm that was refused."""

    def make() -> None:
        x = placeholder("x", (4, 8))
        mean, variance = moments(x)
        deviation = tf.sqrt(variance)
        tf.divide(x - mean, tf.sqrt(tf.square(deviation) + EPSILON), name="y")
        tf.divide(x - mean, deviation + EPSILON, name="z")

    x = rng.normal(size=(4, 8)).astype(np.float32)
    exact = oracle.layer_norm(x, epsilon=EPSILON).y
    _, records = check(trace(make), {"x": x}, exact, 1, fetches=["y", "z"])
    assert sorted(r.reason for r in records) == ["", "no_output"]


def _reversible(x: tf.Tensor, gamma: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """RevIN: a series is normalized over time, predicted, and put back to where it was."""
    mean, variance = tf.nn.moments(x, [1], keepdims=True)
    deviation = tf.sqrt(variance + EPSILON)
    y = tf.tensordot((x - mean) / deviation * gamma, weights, 1)
    return y / gamma * deviation + mean


def _plain(x: tf.Tensor, gamma: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    mean, variance = tf.nn.moments(x, [1], keepdims=True)
    return tf.tensordot((x - mean) / tf.sqrt(variance + EPSILON) * gamma, weights, 1)


@pytest.mark.parametrize("jit", [False, True], ids=["", "compiled"])
@pytest.mark.parametrize("of_x", [True, False], ids=["with dx", "without"])
@pytest.mark.parametrize("norm", [_reversible, _plain], ids=lambda f: f.__name__)
def test_dx_that_stays(rng, norm, of_x: bool, jit: bool) -> None:
    """The deviation is differentiated outside of the norm, too; or nobody asks for dx."""

    def step(x: tf.Tensor, gamma: tf.Tensor, weights: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch([gamma, *([x] if of_x else [])])
            loss = tf.reduce_sum(tf.sin(norm(x, gamma, weights)))
        return tape.gradient(loss, [gamma, *([x] if of_x else [])])

    values = [
        rng.normal(1.0, 2.0, (3, 16, 8)).astype(np.float32),
        rng.uniform(0.5, 2.0, 8).astype(np.float32),
        rng.normal(size=(8, 8)).astype(np.float32),
    ]
    signature = [tf.TensorSpec(value.shape) for value in values]
    stock, fused = stock_and_fused(step, signature, values, jit)
    for got, before in zip(fused, stock, strict=True):
        np.testing.assert_allclose(got, before, 1e-3, 1e-4 * np.abs(before).max())
    report = nv_norms_rewriter.report()
    (record,) = (r for r in report.fused if r.direction == "backward")
    left = norm is _reversible and of_x
    assert record.leaves_dx == left
    assert len(record.outputs) == (2 if of_x and not left else 1)
    assert ("fused but for dx" in str(report)) == left
