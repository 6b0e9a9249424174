"""Maxima: which of them mean nothing, and those that no draw reaches."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from recognizer_graphs import (
    check,
    layer_norm,
    moments,
    placeholder,
    run,
    stock_and_fused,
    trace,
)

import nv_norms_rewriter
import oracle
from nv_norms_rewriter import rewrite


def _with_a_peak(rng, *shape: int) -> np.ndarray:
    x = rng.normal(size=shape).astype(np.float32)
    x[0, 7] = -30.0
    return x


def _standardized(x: np.ndarray, axis) -> tuple[np.ndarray, np.ndarray]:
    wide = x.astype(np.float64)
    root = np.sqrt(wide.var(axis, keepdims=True) + np.float32(1e-3))
    return wide - wide.mean(axis, keepdims=True), root


@pytest.mark.parametrize(
    ("shape", "axis"), [((1, 4096), -1), ((64, 64), (0, 1)), ((2, 4096), -1)], ids=str
)
def test_clipped_at_some_deviations(rng, shape, axis) -> None:
    """The bound is a single number in the first two: a statistic of x, not a constant."""

    def make() -> None:
        x = placeholder("x", shape)
        mean, variance = moments(x, axis)
        root = tf.sqrt(variance + 1e-3)
        tf.divide(tf.maximum(x - mean, -4.0 * root), root, name="y")

    x = _with_a_peak(rng, *shape)
    centred, root = _standardized(x, axis)
    check(trace(make), {"x": x}, np.maximum(centred, -4 * root) / root, 0)


@pytest.mark.parametrize("bound", [-1e6, -1e12])
def test_bound_below_every_draw(rng, bound: float) -> None:
    def make() -> None:
        x = placeholder("x", (4, 64))
        mean, variance = moments(x)
        tf.multiply(tf.maximum(x - mean, bound), tf.math.rsqrt(variance + 1e-3), name="y")

    x = _with_a_peak(rng, 4, 64) * np.float32(-bound)
    centred, root = _standardized(x, -1)
    check(trace(make), {"x": x}, np.maximum(centred, bound) / root, 0)


@pytest.mark.parametrize("many", [52, 167, 171, 187])
def test_floor_that_is_an_operand(rng, many: int) -> None:
    """What an operand is in the draws hangs on its node's number; it may be negative in all."""

    def make() -> None:
        x, floor = placeholder("x", (5, 8)), placeholder("floor", ())
        for i in range(many):
            tf.sin(x * float(i + 2))
        mean, variance = moments(x)
        y = (x - mean) * tf.math.rsqrt(tf.maximum(variance, floor * 2.0) + 1e-3)
        tf.identity(y, name="y")

    x = rng.normal(size=(5, 8)).astype(np.float32)
    centred, _ = _standardized(x, -1)
    feeds = {"x": x, "floor": np.float32(25.0)}
    check(trace(make), feeds, centred / np.sqrt(50.0 + np.float32(1e-3)), 0)


def test_floor_computed_from_an_unknown_size(rng) -> None:
    def make() -> None:
        x = placeholder("x", (None, 8))
        mean, variance = moments(x)
        floor = tf.cast(tf.shape(x)[0], tf.float32) - 1e3
        y = (x - mean) * tf.math.rsqrt(tf.maximum(variance, floor) + 1e-3)
        tf.identity(y, name="y")

    x = rng.normal(size=(1100, 8)).astype(np.float32)
    centred, _ = _standardized(x, -1)
    check(trace(make), {"x": x}, centred / np.sqrt(100.0 + np.float32(1e-3)), 0)


_FAST = {
    "E[x^2] - E[x]^2": lambda x, m, axis: (
        tf.reduce_mean(tf.square(x), axis, keepdims=True) - tf.square(m)
    ),
    "E[x x] - m m": lambda x, m, axis: tf.reduce_mean(x * x, axis, keepdims=True) - m * m,
    "E[(x - m)^2]": lambda x, m, axis: tf.reduce_mean(
        tf.math.squared_difference(x, m), axis, keepdims=True
    ),
    "E[(x - m)^2] + epsilon": lambda x, m, axis: (
        tf.reduce_mean(tf.square(x - m), axis, keepdims=True) + 1e-3
    ),
}


@pytest.mark.parametrize("variance", _FAST)
@pytest.mark.parametrize(("shape", "axis"), [((3, 8), -1), ((None, 8), -1), ((4, 8), (0, 1))])
@pytest.mark.parametrize("bound", [0.0, -1.0, "relu", "clip"])
def test_variance_that_is_clamped_at_zero_is_the_variance(
    rng, variance, shape, axis, bound
) -> None:
    inside = variance.endswith("epsilon")

    def clamped(v: tf.Tensor) -> tf.Tensor:
        if bound == "clip":  # Keras' backend.sqrt of TensorFlow 2.4 and before
            return tf.clip_by_value(v, 0.0, np.inf)
        return tf.nn.relu(v) if bound == "relu" else tf.maximum(bound, v)

    def make() -> None:
        x = placeholder("x", shape)
        mean = tf.reduce_mean(x, axis, keepdims=True)
        v = clamped(_FAST[variance](x, mean, axis))
        tf.multiply(x - mean, tf.math.rsqrt(v if inside else v + 1e-3), name="y")

    x = rng.normal(size=(3 if axis == -1 else 4, 8)).astype(np.float32)
    check(trace(make), {"x": x}, oracle.layer_norm(x, axis=axis, epsilon=1e-3).y, 1)


def test_rms_that_is_clamped_at_zero(rng) -> None:
    def make() -> None:
        x = placeholder("x", (None, 8))
        v = tf.nn.relu6(x)  # another norm's neighbour: the clamp below is what is asked about
        squares = tf.maximum(tf.reduce_mean(tf.square(v), -1, keepdims=True), tf.zeros(()))
        tf.multiply(v, tf.math.rsqrt(squares + 1e-3), name="y")

    x = rng.normal(size=(3, 8)).astype(np.float32)
    v = np.clip(x, 0, 6).astype(np.float64)
    expected = v / np.sqrt((v * v).mean(-1, keepdims=True) + 1e-3)
    check(trace(make), {"x": x}, expected, 1)


def test_norm_behind_a_clamped_input_is_still_fused(rng) -> None:
    def make() -> None:
        x = tf.maximum(placeholder("x", (None, 8)), -1e6)
        tf.identity(layer_norm(x), name="y")

    x = rng.normal(size=(3, 8)).astype(np.float32) * np.float32(3e6)
    clamped = np.maximum(x, np.float32(-1e6))
    check(trace(make), {"x": x}, oracle.layer_norm(clamped, epsilon=1e-3).y, 1)


_CLAMPS = {
    "max(v, 0)": lambda v: tf.maximum(v, 0.0),
    "max(0, v)": lambda v: tf.maximum(0.0, v),
    "max(v, -1)": lambda v: tf.maximum(v, -1.0),
    "clip(v, 0, inf)": lambda v: tf.clip_by_value(v, 0.0, np.inf),
    "min(inf, v)": lambda v: tf.minimum(np.float32(np.inf), v),
    "relu(v)": tf.nn.relu,
    "relu(v) of keras": keras.ops.relu,
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("jit", [False, True], ids=["", "compiled"])
@pytest.mark.parametrize("batch", [4, None], ids=["", "unknown"])
@pytest.mark.parametrize("centred", [True, False], ids=["centred", "rms"])
@pytest.mark.parametrize("clamp", _CLAMPS)
def test_gradient_of_a_clamped_variance(rng, clamp, centred: bool, batch, jit: bool) -> None:
    """A row of equal numbers, of which the clamp passes no gradient on, has none to pass."""

    def step(x: tf.Tensor, gamma: tf.Tensor, dy: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch([x, gamma])
            square = tf.reduce_mean(x * x, -1, keepdims=True)
            mean = tf.reduce_mean(x, -1, keepdims=True) if centred else tf.zeros_like(square)
            root = tf.math.rsqrt(_CLAMPS[clamp](square - mean * mean) + 1e-3)
            y = (x - mean if centred else x) * root * gamma
            loss = tf.reduce_sum(tf.square(y) * dy)
        return [y, *tape.gradient(loss, [x, gamma])]

    x, dy = (rng.normal(size=(4, 8)).astype(np.float32) for _ in range(2))
    x[1] = 2.0 if centred else 0.0
    gamma = rng.uniform(0.5, 2.0, 8).astype(np.float32)
    signature = [tf.TensorSpec((batch, 8)), tf.TensorSpec((8,)), tf.TensorSpec((batch, 8))]
    stock, fused = stock_and_fused(step, signature, [x, gamma, dy], jit)
    if centred:
        y = oracle.layer_norm(x, gamma, epsilon=1e-3).y
    else:
        y = oracle.rms_norm(x, gamma, epsilon=1e-3).y
    given = 2.0 * dy * y
    exact = oracle.backward(given, x, gamma, (1,), (1,), 1e-3, subtract_mean=centred)
    for got, before, expected in zip(fused, stock, (y, exact.dx, exact.dgamma), strict=True):
        size = np.abs(expected).max()
        np.testing.assert_allclose(before, expected, 1e-3, 1e-4 * size, err_msg="stock")
        np.testing.assert_allclose(got, expected, 1e-3, 1e-4 * size)
    (record,) = (r for r in nv_norms_rewriter.report().fused if r.direction == "backward")
    assert len(record.outputs) == 2 and not record.leaves_dx


@pytest.mark.parametrize(
    "clamp",
    [
        lambda v: tf.nn.relu(v - 0.5),
        tf.nn.relu6,
        tf.nn.elu,
        lambda v: tf.nn.leaky_relu(v - 0.5),
        lambda v: tf.maximum(v, 0.5),
        lambda v: tf.minimum(v, 80.0),
        lambda v: tf.minimum(v, np.finfo("f").max),
        lambda v: tf.minimum(v, -np.inf),
        lambda v: tf.clip_by_value(v, 0.0, 80.0),
        lambda v: tf.where(v >= 0.5, v, 0.0),
        lambda v: tf.nn.relu(v) + tf.nn.relu(-v),
    ],
)
def test_other_clamps_must_not_fuse(rng, clamp) -> None:
    def make() -> None:
        x = placeholder("x", (4, 8))
        mean, variance = moments(x)
        tf.multiply(x - mean, tf.math.rsqrt(clamp(variance) + 1e-3), name="y")

    x = rng.normal(size=(4, 8)).astype(np.float32) * np.array([[0.1], [1], [4], [9]], np.float32)
    after, report = rewrite(trace(make), fetches=["y"])
    assert not report.fused
    np.testing.assert_array_equal(run(after, {"x": x}), run(trace(make), {"x": x}))


def test_relu_of_the_deviations_must_not_fuse(rng) -> None:
    def make() -> None:
        x = placeholder("x", (4, 8))
        mean, variance = moments(x)
        tf.divide(tf.nn.relu(x - mean), tf.sqrt(variance + 1e-3), name="y")

    x = rng.normal(size=(4, 8)).astype(np.float32)
    centred, root = _standardized(x, -1)
    check(trace(make), {"x": x}, np.maximum(centred, 0.0) / root, 0)


@pytest.mark.parametrize("flipped", [False, True])
def test_choice_that_keeps_zero_from_being_divided_by_must_not_fuse(rng, flipped: bool) -> None:
    """It looks like the gradient of the clamp."""

    def make() -> None:
        x = placeholder("x", (4, 8))
        square = tf.reduce_mean(x * x, -1, keepdims=True)
        root = tf.math.rsqrt(tf.maximum(0.0, square) if flipped else tf.nn.relu(square))
        tf.multiply(x, tf.where(tf.greater_equal(0.0, square), 0.0, root), name="y")

    x = rng.normal(size=(4, 8)).astype(np.float32)
    x[2] = 0.0
    square = (x.astype(np.float64) ** 2).mean(-1, keepdims=True)
    expected = x / np.sqrt(np.where(square == 0, 1.0, square))
    check(trace(make), {"x": x}, expected, 0)
