"""Unknown sizes that turn out to be 1, where the graph broadcasts: left to the graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import tensorflow as tf
from recognizer_graphs import fused_as_stock, layer_norm

import nv_norms_rewriter

EPSILON = 1e-3


def _draw(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(1.0, 2.0, shape).astype(np.float32)


def _batch_norm_of_rows(x: tf.Tensor, offset: tf.Tensor) -> list[tf.Tensor]:
    with tf.GradientTape() as tape:
        tape.watch(x)
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        y = tf.nn.batch_normalization(x, mean, variance, offset, tf.range(1.0, 9.0), EPSILON)
        loss = tf.reduce_sum(tf.sin(y))
    return [y, tape.gradient(loss, x)]


@pytest.mark.parametrize("batch", [1, 3])
def test_offset_of_a_known_batch(rng, batch: int) -> None:
    """Where x's batch is 1, y is larger than x, and so is the gradient of y: it is summed."""
    values = _draw(rng, batch, 4, 8), _draw(rng, 3, 4, 8)
    known = (None, 4, 8), (3, 4, 8)
    assert fused_as_stock(_batch_norm_of_rows, known, values) == ["forward", "backward"]


def test_offset_of_the_same_batch(rng) -> None:
    values = _draw(rng, 3, 4, 8), _draw(rng, 3, 4, 8)
    known = (3, 4, 8), (3, 4, 8)
    assert fused_as_stock(_batch_norm_of_rows, known, values) == ["forward", "backward"]


@pytest.mark.parametrize("rank", [2, 3, 4])
def test_dy_that_is_yet_to_be_broadcast(rng, rank: int) -> None:
    """The gradient of sum(norm(x) * g) is g, of one element: Grappler drops the ones around it."""

    def step(x: tf.Tensor, g: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch([x, g])
            loss = tf.reduce_sum(layer_norm(x, -1, EPSILON) * g)
        return tape.gradient(loss, [x, g])

    values = _draw(rng, *(2, 3, 5)[: rank - 1], 6), _draw(rng, *(1,) * rank)
    assert "forward" in fused_as_stock(step, [(None,) * rank, (1,) * rank], values)


def _rms(x: tf.Tensor) -> tf.Tensor:
    return tf.math.rsqrt(tf.reduce_mean(x * x, -1, keepdims=True) + EPSILON)


def _plus_zeros(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
    return (x + tf.zeros(6)) * _rms(x)


def _plus_zeros_like(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
    return (x + tf.zeros_like(w)) * _rms(x)


def _zeros_in_the_root(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
    return x * (_rms(x) + tf.zeros(6))


def _counted_by_weights(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
    ones, count = tf.ones_like(w), tf.cast(tf.size(w), tf.float32)
    mean = tf.reduce_sum(x * ones, -1, keepdims=True) / count
    variance = tf.reduce_sum(tf.square(x - mean) * ones, -1, keepdims=True) / count
    return (x - mean) * tf.math.rsqrt(variance + EPSILON)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("known", [(None, None), (4, None), None], ids=str)
@pytest.mark.parametrize("sizes", [(1, 6), (6, 1), (6, 6)], ids=str)
@pytest.mark.parametrize(
    "norm", [_plus_zeros, _plus_zeros_like, _zeros_in_the_root, _counted_by_weights]
)
def test_operand_that_changes_no_value(rng, norm: Callable, sizes, known) -> None:
    """Its size may be 1 where x's is not, or the other way round."""

    def step(x: tf.Tensor, w: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = norm(x, w)
            loss = tf.reduce_sum(tf.sin(y))
        return [y, tape.gradient(loss, x)]

    values = _draw(rng, 4, sizes[0]), _draw(rng, sizes[1])
    assert fused_as_stock(step, [known, (None,)], values) == []


@pytest.mark.parametrize("shape", [(4, 6), (3, 4, 6)], ids=len)
@pytest.mark.parametrize("norm", [_plus_zeros_like, lambda x, w: x * (_rms(x) + tf.zeros_like(w))])
def test_zeros_of_unknown_rank(rng, norm: Callable, shape: tuple[int, ...]) -> None:
    values = _draw(rng, 4, 6), _draw(rng, *shape)
    assert fused_as_stock(lambda x, w: [norm(x, w)], [(4, 6), None], values) == []


@pytest.mark.parametrize("channels", [1, 4])
def test_channels_that_an_argument_leaves_open(rng, channels: int) -> None:
    """An instance norm's beta, and what y is multiplied with: dy is summed before it is one."""

    def step(x: tf.Tensor, beta: tf.Tensor, w: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            mean, variance = tf.nn.moments(x, [1, 2], keepdims=True)
            y = (x - mean) * tf.math.rsqrt(variance + EPSILON) + beta
            loss = tf.reduce_sum(tf.sin(y * w + beta))
        return [y, tape.gradient(loss, x)]

    values = _draw(rng, 1, 4, channels), _draw(rng, 4), _draw(rng, 4)
    known = (None, None, None), (4,), (None,)
    fused_as_stock(step, known, values)


@pytest.mark.parametrize("sizes", [(1, 2), (2, 1), (3, 3)], ids=str)
def test_gradient_of_a_norm_whose_input_is_broadcast_elsewhere(rng, sizes: Sequence[int]) -> None:
    """That part of a sum with another norm tells the sizes apart, not the gradient's own terms.

    Its dy was taken from before the Sum that undoes the broadcast, which the op then refused.
    """

    def step(x: tf.Tensor, z: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch([x, z])
            mean, variance = tf.nn.moments(z, [-2], keepdims=True)
            first = tf.nn.batch_normalization(z, mean, variance, None, None, EPSILON)
            both = first + layer_norm(x + z, -1, EPSILON)
            loss = tf.reduce_sum(both * tf.cos(tf.range(8.0)))
        return tape.gradient(loss, [x, z])

    known = [(None, None, 8)] * 2
    values = _draw(rng, sizes[0], 3, 8), _draw(rng, sizes[1], 1 if sizes[0] != 3 else 3, 8)
    assert fused_as_stock(step, known, values).count("forward") == 2


@pytest.mark.parametrize("batch", [1, 4])
def test_gradient_of_a_norm_and_of_its_sum_with_a_larger_one(rng, batch: int) -> None:
    def step(x: tf.Tensor, z: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x * _rms(x) + z
            loss = tf.reduce_sum(y**3) + tf.reduce_sum(x * y)
        return [tape.gradient(loss, x)]

    values = _draw(rng, batch, 6), _draw(rng, 4, 6)
    assert "forward" in fused_as_stock(step, [(None, 6)] * 2, values)


@pytest.mark.parametrize("channels", [1, 8])
@pytest.mark.parametrize(
    "before",
    [
        tf.identity,
        tf.nn.relu,
        lambda x: tf.cast(tf.cast(x, tf.float64), tf.float32),
        lambda x: tf.reshape(x, (4, -1)),
        lambda x: x[:, : tf.shape(x)[1]],
        lambda x: tf.gather(x, tf.range(tf.shape(x)[1]), axis=1),
    ],
    ids=["argument", "relu", "casts", "reshape", "slice", "gather"],
)
def test_channels_that_may_be_one_for_all_of_gamma(rng, before: Callable, channels: int) -> None:
    """Then y is as large as gamma, which only the graph makes it: xhat alone is fused."""

    def step(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> list[tf.Tensor]:
        return [layer_norm(before(x), -1, EPSILON, gamma, beta)]

    values = _draw(rng, 4, channels), _draw(rng, 8), _draw(rng, 8)
    assert fused_as_stock(step, [(None, None), (8,), (8,)], values) == ["forward"]


@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize(
    ("known", "shape"), [((None, 3, 8), (3, -1, 8)), ((None, None, 8), (-1, 2, 8))], ids=str
)
def test_output_that_is_reshaped_to_other_sizes(rng, known, shape, batch: int) -> None:
    """Its dy has those, which may be x's as far as inference tells: [3, ?, 8] and [?, 3, 8].

    The gradient took it as it was, Grappler concluded that the sizes were the same, and dropped the
    Reshape: y came in x's shape.
    """

    def step(x: tf.Tensor) -> list[tf.Tensor]:
        y = tf.sin(tf.reshape(layer_norm(x, -1, EPSILON), shape))
        return [y, tf.reduce_mean(y, 0), tf.gradients(tf.reduce_sum(y * y), x)[0]]

    value = _draw(rng, batch, 3 if known[1] else 4, 8)
    assert fused_as_stock(step, [known], [value]) == ["forward", "backward"]


@pytest.mark.parametrize("shape", [(1, 4, 8), (5, 0, 8)], ids=str)
def test_no_elements_may_have_any_batch(rng, shape: tuple[int, ...]) -> None:
    """[5, 0, 8] can be read as [1, 0, 8], so that of x's batch nothing is known."""

    def step(x: tf.Tensor) -> list[tf.Tensor]:
        y = layer_norm(3.0 * x, -1, EPSILON)
        z = tf.sin(tf.reshape(y, tf.stack([1, tf.shape(x)[1], 8])))
        return [z, tf.gradients(tf.reduce_sum(z * z), x)[0]]

    fused_as_stock(step, [(None, None, 8)], [_draw(rng, *shape)])


@pytest.mark.parametrize("axes", [[-1], [1, 3]], ids=str)
@pytest.mark.parametrize("heads", [1, 4])
def test_heads_that_a_reshape_leaves_over(rng, heads: int, axes: list[int]) -> None:
    """One head is broadcast to all of gamma's; merged with the batch it took four rows for one."""
    gamma, beta = _draw(rng, 4, 8), _draw(rng, 4, 8)

    def step(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            split = tf.reshape(x, [tf.shape(x)[0], tf.shape(x)[1], -1, 8])
            mean, variance = tf.nn.moments(split, axes, keepdims=True)
            y = tf.nn.batch_normalization(split, mean, variance, beta, gamma, EPSILON)
            loss = tf.reduce_sum(tf.sin(y))
        return [y, tape.gradient(loss, x)]

    fused_as_stock(step, [(None, None, None)], [_draw(rng, 4, 3, heads * 8)])


@pytest.mark.parametrize("batch", [0, 2])
def test_no_heads_at_all(rng, batch: int) -> None:
    gamma, beta = _draw(rng, 0, 8), _draw(rng, 0, 8)

    def step(x: tf.Tensor) -> list[tf.Tensor]:
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        return [tf.nn.batch_normalization(x, mean, variance, beta, gamma, EPSILON)]

    fused_as_stock(step, [(None, None, 0, 8)], [_draw(rng, batch, 3, 0, 8)])


@pytest.mark.parametrize("spelling", ["slices", "gathers"])
def test_size_out_of_a_table_of_shapes(rng, spelling: str) -> None:
    """A row of a matrix of sizes: its first number is not the matrix's second."""

    def step(x: tf.Tensor, p: tf.Tensor, q: tf.Tensor) -> list[tf.Tensor]:
        table = tf.stack([tf.shape(p), tf.shape(q)])
        count = table[1][0] if spelling == "slices" else tf.gather(tf.gather(table, 1), 0)
        groups = tf.reshape(x, [tf.shape(x)[0], 3, count, 8])
        mean, variance = tf.nn.moments(groups, [1, 3], keepdims=True)
        return [(groups - mean) * tf.math.rsqrt(variance + EPSILON)]

    values = _draw(rng, 2, 3, 16), _draw(rng, 6, 4), _draw(rng, 2, 5)
    fused_as_stock(step, [(None, 3, None), (None, 4), (None, 5)], values)


def test_sizes_that_the_layout_pass_has_turned(rng) -> None:
    """As before a transposed convolution on a GPU: the channels are known behind a Transpose."""
    gamma, beta = _draw(rng, 8), _draw(rng, 8)

    def step(x: tf.Tensor) -> list[tf.Tensor]:
        size = tf.shape(x)
        sizes = tf.stack([size[0], size[1], size[2] // 8, 8])
        sizes = tf.raw_ops.DataFormatVecPermute(x=sizes, src_format="NHWC", dst_format="NCHW")
        image = tf.transpose(tf.reshape(x, sizes), [0, 2, 3, 1])
        size = tf.shape(image)
        groups = tf.reshape(image, [-1, size[1], size[2], 4, 2])
        mean, variance = tf.nn.moments(groups, [1, 2, 4], keepdims=True)
        y = tf.reshape((groups - mean) * tf.math.rsqrt(variance + EPSILON), size)
        return [y * gamma + beta]

    assert fused_as_stock(step, [(None, None, None)], [_draw(rng, 2, 3, 40)]) == ["forward"]
    (record,) = nv_norms_rewriter.report().fused
    assert record.kind == "group_norm"


def _count_in_the_graph(x: tf.Tensor, table: tf.Tensor) -> list[tf.Tensor]:
    mean = tf.reduce_sum(x, 1, keepdims=True) / 5.0
    variance = tf.math.reduce_variance(x, 1, keepdims=True)
    return [(x - mean) * tf.math.rsqrt(variance + EPSILON) + table]


def _length_in_the_graph(x: tf.Tensor, table: tf.Tensor) -> list[tf.Tensor]:
    return [x / tf.norm(x, axis=1, keepdims=True) * 5**0.5 * table]


@pytest.mark.parametrize("length", [1, 5])
@pytest.mark.parametrize("step", [_count_in_the_graph, _length_in_the_graph])
def test_count_that_only_what_follows_makes_the_size(rng, step: Callable, length: int) -> None:
    """The graph's 5 is x's size where a table of 5 is added, but one x is broadcast to it."""
    values = _draw(rng, 2, length, 8), _draw(rng, 5, 8)
    assert fused_as_stock(step, [(None, None, 8), (5, 8)], values) == []


@pytest.mark.parametrize("size", [1, 8])
@pytest.mark.parametrize("known", [(None, None), (3, None)])
def test_gradient_alone_along_a_size_that_is_open(rng, known: tuple, size: int) -> None:
    gamma, beta = tf.range(1.0, 9.0), tf.range(8.0)

    def step(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch([x, gamma, beta])
            mean, variance = tf.nn.moments(x, [-1], keepdims=True)
            y = tf.nn.batch_normalization(x, mean, variance, beta, gamma, EPSILON)
            loss = tf.reduce_sum(tf.sin(y))
        return tape.gradient(loss, [x, gamma, beta])

    assert fused_as_stock(step, [known], [_draw(rng, 3, size)]) == []
