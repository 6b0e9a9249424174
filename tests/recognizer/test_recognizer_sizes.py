"""Numbers that a graph computes from sizes that are not known."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from recognizer_graphs import check, layer_norm, placeholder, trace

import oracle


def _rows(rng, *shape: int, scale: float = 1.0) -> np.ndarray:
    return (rng.normal(size=shape) * scale).astype(np.float32)


def _size(x: tf.Tensor, *axes: int) -> tf.Tensor:
    count = tf.shape(x)[axes[0]]
    for axis in axes[1:]:
        count *= tf.shape(x)[axis]
    return tf.cast(count, tf.float32)


@pytest.mark.parametrize(
    ("shape", "x_shape", "epsilon_of"),
    [
        ((None, 8), (500, 8), lambda n: n[0] * 1e-3),
        ((None, None), (3, 100), lambda n: 1.0 / n[1]),
        ((None, None), (3, 100), lambda n: n[1] ** -0.5),
        ((None, None, 8), (3, 9, 8), lambda n: (n[0] - n[1]) ** 2 * 1e-3),
    ],
)
def test_epsilon_of_an_unknown_size(rng, shape, x_shape, epsilon_of) -> None:
    def make() -> None:
        x = placeholder("x", shape)
        epsilon = epsilon_of([_size(x, i) for i in range(len(shape))])
        tf.identity(layer_norm(x, -1, epsilon), name="y")

    x = _rows(rng, *x_shape, scale=0.05)
    check(trace(make), {"x": x}, oracle.layer_norm(x, epsilon=epsilon_of(x_shape)).y, 0)


@pytest.mark.parametrize("axes", [(1, 2), (1,), (2,)])
def test_epsilon_beside_a_sum_over_unknown_sizes(rng, axes: tuple[int, ...]) -> None:
    """sum + epsilon = N * (mean + epsilon / N)."""

    def make() -> None:
        x = placeholder("x", (None, None, None, 3))
        squares = tf.reduce_sum(tf.square(x), axes, keepdims=True)
        y = x * tf.math.rsqrt(squares + 1e-3)
        tf.multiply(y, tf.sqrt(_size(x, *axes)), name="y")

    x = _rows(rng, 2, 16, 16, 3, scale=0.003)
    squares = np.square(x, dtype=np.float64).sum(axes, keepdims=True)
    count = np.prod([16 for _ in axes])
    expected = x / np.sqrt(squares + np.float32(1e-3)) * np.sqrt(count)
    check(trace(make), {"x": x}, expected, 0)


@pytest.mark.parametrize("epsilon", [0.0, 1e-3])
def test_sum_over_an_unknown_size_with_its_share_of_epsilon(rng, epsilon: float) -> None:
    """sum + N * epsilon = N * (mean + epsilon), whatever N is."""

    def make() -> None:
        x = placeholder("x", (None, None))
        n = _size(x, 1)
        squares = tf.reduce_sum(tf.square(x), -1, keepdims=True)
        root = tf.math.rsqrt(squares + n * epsilon if epsilon else squares)
        tf.multiply(x * root, tf.sqrt(n), name="y")

    x = _rows(rng, 4, 64, scale=0.03)
    mean = np.square(x, dtype=np.float64).mean(-1, keepdims=True)
    check(trace(make), {"x": x}, x / np.sqrt(mean + epsilon), 1)


def test_mean_over_an_unknown_size_by_sum_and_count(rng) -> None:
    def make() -> None:
        x = placeholder("x", (None, None))
        n = _size(x, 1)
        mean = tf.reduce_sum(x, -1, keepdims=True) / n
        squares = tf.reduce_sum(tf.math.squared_difference(x, mean), -1, keepdims=True)
        tf.multiply(x - mean, tf.math.rsqrt(squares / n + 1e-3), name="y")

    x = _rows(rng, 3, 5)
    check(trace(make), {"x": x}, oracle.layer_norm(x, epsilon=1e-3).y, 1)


def _rms_norm_with_count(count_of, shape) -> tf.compat.v1.GraphDef:
    def make() -> None:
        x = placeholder("x", shape)
        squares = tf.reduce_sum(tf.square(x), -1, keepdims=True)
        tf.multiply(x, tf.math.rsqrt(squares / count_of(x) + 1e-3), name="y")

    return trace(make)


@pytest.mark.parametrize("least", [4.0, 8.0, 30.0])
def test_count_that_is_clamped(rng, least: float) -> None:
    graph = _rms_norm_with_count(lambda x: tf.maximum(_size(x, 1), least), (None, None))
    x = _rows(rng, 4, 3)
    squares = np.square(x, dtype=np.float64).sum(-1, keepdims=True)
    check(graph, {"x": x}, x / np.sqrt(squares / least + 1e-3), 0)


@pytest.mark.parametrize("shape", [(None, None), (None, 300)])
def test_count_in_a_type_that_does_not_hold_it(rng, shape) -> None:
    def count_of(x: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.cast(tf.shape(x)[1], tf.int8), tf.float32)

    x = _rows(rng, 4, 300)
    squares = np.square(x, dtype=np.float64).sum(-1, keepdims=True)
    expected = x / np.sqrt(squares / (300 - 256) + 1e-3)
    check(_rms_norm_with_count(count_of, shape), {"x": x}, expected, 0)


@pytest.mark.parametrize(("dtype", "size"), [(tf.float16, 2051), (tf.bfloat16, 259)])
@pytest.mark.parametrize("known", [True, False])
def test_count_that_half_precision_rounds(rng, dtype, size: int, known: bool) -> None:
    def count_of(x: tf.Tensor) -> tf.Tensor:
        count = tf.cast(tf.raw_ops.Shape(input=x)[1], dtype)
        return tf.cast(count, tf.float32)

    x = _rows(rng, 4, size)
    count = np.asarray(size, dtype.as_numpy_dtype).astype(np.float64)
    assert count != size
    squares = np.square(x, dtype=np.float64).sum(-1, keepdims=True)
    expected = x / np.sqrt(squares / count + 1e-3)
    graph = _rms_norm_with_count(count_of, (None, size if known else None))
    check(graph, {"x": x}, expected, 0)


def test_reciprocal_count_that_half_precision_rounded_is_not_rounded_back_in_float32(rng) -> None:
    share = tf.constant(1 / 15, tf.float16).numpy()

    def make() -> None:
        x = placeholder("x", (4, 15))
        squares = tf.reduce_sum(tf.square(x), -1, keepdims=True)
        mean = squares * tf.cast(tf.constant(share), tf.float32)
        tf.multiply(x, tf.math.rsqrt(mean + 1e-3), name="y")

    x = _rows(rng, 4, 15)
    squares = np.square(x, dtype=np.float64).sum(-1, keepdims=True)
    check(trace(make), {"x": x}, x / np.sqrt(squares * np.float64(share) + 1e-3), 0)


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64, tf.float32, tf.float64])
def test_count_in_a_type_that_holds_it(rng, dtype) -> None:
    def count_of(x: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.cast(tf.cast(tf.shape(x)[1], dtype), tf.int32), tf.float32)

    x = _rows(rng, 4, 300)
    mean = np.square(x, dtype=np.float64).mean(-1, keepdims=True)
    graph = _rms_norm_with_count(count_of, (None, None))
    check(graph, {"x": x}, x / np.sqrt(mean + 1e-3), 1)


@pytest.mark.parametrize("one", [3, [3]], ids=["scalar", "vector"])
@pytest.mark.parametrize("swap", [False, True], ids=["none_first", "none_last"])
@pytest.mark.parametrize(
    "op", [tf.add, tf.math.floormod, tf.multiply, tf.math.floordiv, tf.maximum]
)
def test_no_sizes_beside_one_number(rng, op, swap: bool, one: int | list[int]) -> None:
    """As the gradient of a mean of a scalar computes its axes: none, plus the rank, modulo it."""

    def make() -> None:
        x = placeholder("x", (None, 8))
        none = tf.constant([], tf.int32)
        number = tf.constant(one, tf.int32)
        also_none = op(number, none) if swap else op(none, number)
        y = tf.reshape(x, tf.concat([also_none, tf.shape(x)], 0))
        tf.identity(layer_norm(y), name="y")

    x = _rows(rng, 5, 8)
    check(trace(make), {"x": x}, oracle.layer_norm(x).y, 1)


@pytest.mark.parametrize(
    ("numbers", "begin", "end", "masks"),
    [
        ([0, 1, 2], 2, 3, {"begin_mask": 2}),  # of a vector only the first bit counts
        ([0, 1, 2], 0, 1, {"end_mask": 2}),
        ([0, 2, 1], 1, 3, {"begin_mask": 1, "end_mask": 0}),
        ([2, 0, 1], 1, 2, {"begin_mask": 1, "shrink_axis_mask": 1}),  # one number: no masks
        ([0, 1, 2], 1, 2, {"begin_mask": 1, "end_mask": 1, "shrink_axis_mask": 2}),
        ([1, 2, 0], -2, 0, {"shrink_axis_mask": 1}),
    ],
    ids=str,
)
def test_axes_that_are_part_of_a_vector(
    rng, numbers: list[int], begin: int, end: int, masks: dict[str, int]
) -> None:
    def axes() -> tf.Tensor:
        zero = {"ellipsis_mask": 0, "new_axis_mask": 0, "shrink_axis_mask": 0}
        return tf.raw_ops.StridedSlice(
            input=tf.constant(numbers), begin=[begin], end=[end], strides=[1],
            **{**zero, "begin_mask": 0, "end_mask": 0, **masks},
        )  # fmt: skip

    def make() -> None:
        x = placeholder("x", (2, 4, 8))
        mean = tf.reduce_mean(x, axes(), keepdims=True)
        squares = tf.reduce_mean(tf.math.squared_difference(x, mean), axes(), keepdims=True)
        tf.multiply(x - mean, tf.math.rsqrt(squares + 1e-3), name="y")

    x = _rows(rng, 2, 4, 8)
    taken = tuple(np.atleast_1d(axes().numpy()))
    exact = oracle.normalize(x, taken, 1e-3, subtract_mean=True).y
    over_the_batch = 0 in taken and len(taken) < 3
    check(trace(make), {"x": x}, exact, 0 if over_the_batch else 1)


def test_what_nobody_fetches_says_nothing_of_sizes(rng) -> None:
    def make() -> None:
        x = placeholder("x", (4, None))
        tf.identity(layer_norm(x, (0, 1)), name="y")
        # Summed with a column, x would have one column, and its rows' axis alone would matter.
        tf.raw_ops.AddN(inputs=[x, placeholder("column", (4, 1))], name="unread")

    x = _rows(rng, 4, 8)
    exact = oracle.normalize(x, (0, 1), 1e-3, subtract_mean=True).y
    check(trace(make), {"x": x}, exact, 1)
