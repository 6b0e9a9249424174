"""Shapes and axes that the graph computes, and sizes that nobody knows."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from recognizer_graphs import check, layer_norm, placeholder, trace

import oracle


def _float32(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(1.0, 2.0, shape).astype(np.float32)


def _pack(x: tf.Tensor) -> tf.Tensor:
    shape = tf.shape(x)
    return tf.stack([shape[0], shape[1], 4, 2])


def _gather_and_concat(x: tf.Tensor) -> tf.Tensor:
    return tf.concat([tf.gather(tf.shape(x), [0, 1]), [4, 2]], 0)


def _strided_slice(x: tf.Tensor) -> tf.Tensor:
    return tf.concat([tf.shape(x)[:-1], [4, -1]], 0)


def _floor_div(x: tf.Tensor) -> tf.Tensor:
    shape = tf.shape(x)
    return tf.stack([shape[0], shape[1], 4, shape[2] // 4])


def _int64(x: tf.Tensor) -> tf.Tensor:
    return tf.concat([tf.shape(x, tf.int64)[:2], tf.constant([4, 2], tf.int64)], 0)


@pytest.mark.parametrize("split", [_pack, _gather_and_concat, _strided_slice, _floor_div, _int64])
def test_split_into_groups(rng, split) -> None:
    """Group norm of channels last, the moments within [N, S, G, C / G]."""

    def make() -> None:
        x = placeholder("x", (None, None, 8))
        y = layer_norm(tf.reshape(x, split(x)), [1, 3])
        tf.reshape(y, tf.shape(x), name="y")

    x = _float32(rng, 3, 5, 8)
    check(trace(make), {"x": x}, oracle.group_norm(x, groups=4, epsilon=1e-3).y, 1)


@pytest.mark.parametrize(
    "within",
    [
        lambda size: size // 4,
        lambda size: size - 6,
        lambda size: size // 8 + 1,
        lambda size: size // 8 * 2,
        lambda size: tf.stack([size, 12])[0] // 4,
    ],
    ids=["divided", "less", "more", "times", "packed"],
)
def test_groups_whose_size_is_computed_before_another_view(rng, within) -> None:
    """Of an image of known sizes whose norm is read as rows of another length: nothing else tells
    the last of the axes of [N, S, G, C / G]."""

    x, gamma = _float32(rng, 3, 5, 8), _float32(rng, 8)

    def make() -> None:
        x = placeholder("x", (None, 5, 8))
        shape = tf.shape(x)
        groups = tf.reshape(x, tf.stack([shape[0], shape[1], 4, within(shape[2])]))
        y = layer_norm(groups, [1, 3]) * tf.reshape(gamma, [1, 1, 4, 2])
        tf.reshape(y, [-1, 40], name="y")

    expected = oracle.group_norm(x, gamma, groups=4, epsilon=1e-3).y
    check(trace(make), {"x": x}, expected.reshape(3, 40), 1)


def _beyond(x: tf.Tensor) -> tf.Tensor:
    """How many of x's places along axis 1 are over: one of each four."""
    return tf.shape(x)[1] // 4


@pytest.mark.parametrize(
    ("part", "exact"),
    [
        (lambda x: tf.boolean_mask(x, x[:, :, 0] > 1), lambda x: x[x[:, :, 0] > 1]),
        (
            lambda x: tf.slice(x, [0, 0, 0], tf.stack([-1, tf.shape(x)[1] - _beyond(x), -1])),
            lambda x: x[:, :-1],
        ),
        (
            lambda x: tf.slice(x, tf.stack([0, _beyond(x), 0]), [-1, -1, -1]),
            lambda x: x[:, 1:],
        ),
        (
            lambda x: tf.pad(x, [[0, 0], [0, _beyond(x)], [0, 0]]),
            lambda x: np.pad(x, [(0, 0), (0, 1), (0, 0)]),
        ),
    ],
    ids=["boolean_mask", "size", "begin", "pad"],
)
def test_part_whose_channels_only_operands_tell(rng, part, exact) -> None:
    """As tokens without padding, a crop to the middle, or windows: some axes stay as they are."""
    x, gamma, beta = _float32(rng, 3, 5, 8), _float32(rng, 8), _float32(rng, 8)
    wanted = exact(x)

    def make() -> None:
        z = part(placeholder("x", (None, None, 8)))
        mean, variance = tf.nn.moments(z, [-1], keepdims=True)
        scale, offset = (tf.reshape(p, [1] * (wanted.ndim - 1) + [8]) for p in (gamma, beta))
        tf.identity(tf.nn.batch_normalization(z, mean, variance, offset, scale, 1e-3), name="y")

    expected = oracle.layer_norm(wanted, gamma, beta, epsilon=1e-3).y
    check(trace(make), {"x": x}, expected, 1)


@pytest.mark.parametrize(
    ("part", "exact"),
    [
        (
            lambda x: tf.slice(x, tf.stack([0, 0, 3 * _beyond(x)]), [-1, -1, -1]),
            lambda x: x[..., 3:],
        ),
        (
            lambda x: tf.slice(x, [0, 0, 0], tf.stack([-1, -1, 7 * _beyond(x)])),
            lambda x: x[..., :7],
        ),
        (
            lambda x: tf.pad(x, [[0, 0], [0, 0], [0, _beyond(x)]]),
            lambda x: np.pad(x, [(0, 0), (0, 0), (0, 1)]),
        ),
    ],
    ids=["begin", "size", "pad"],
)
def test_part_of_the_channels_is_not_taken_for_all(rng, part, exact) -> None:
    x = _float32(rng, 3, 5, 8)

    def make() -> None:
        z = part(placeholder("x", (None, None, 8)))
        tf.identity(layer_norm(z), name="y")

    check(trace(make), {"x": x}, oracle.layer_norm(exact(x), epsilon=1e-3).y, 1)


def test_rows_flattened_by_prod_and_folded_back(rng) -> None:
    def make() -> None:
        x = placeholder("x", (None, None, 8))
        shape = tf.shape(x)
        rows = tf.reshape(x, tf.stack([tf.reduce_prod(shape[:-1]), shape[-1]]))
        tf.reshape(layer_norm(rows), shape, name="y")

    x = _float32(rng, 2, 3, 8)
    check(trace(make), {"x": x}, oracle.layer_norm(x, epsilon=1e-3).y, 1)


def test_axes_from_a_range_over_the_rank(rng) -> None:
    def make() -> None:
        x = placeholder("x", (None, 3, 4, 5))
        tf.identity(layer_norm(x, tf.range(1, tf.rank(x))), name="y")

    x = _float32(rng, 2, 3, 4, 5)
    check(trace(make), {"x": x}, oracle.layer_norm(x, axis=(1, 2, 3), epsilon=1e-3).y, 1)


def test_count_taken_from_the_shape(rng) -> None:
    def make() -> None:
        x = placeholder("x", (None, None))
        count = tf.cast(tf.shape(x)[-1], tf.float32)
        mean = tf.reduce_sum(x, -1, keepdims=True) / count
        squares = tf.reduce_sum(tf.math.squared_difference(x, mean), -1, keepdims=True)
        tf.multiply(x - mean, tf.math.rsqrt(squares / count + 1e-3), name="y")

    x = _float32(rng, 3, 7)
    check(trace(make), {"x": x}, oracle.layer_norm(x, epsilon=1e-3).y, 1)


def test_count_of_another_axis_is_no_mean(rng) -> None:
    def make() -> None:
        x = placeholder("x", (None, None))
        count = tf.cast(tf.shape(x)[0], tf.float32)
        mean = tf.reduce_sum(x, -1, keepdims=True) / count
        squares = tf.reduce_sum(tf.math.squared_difference(x, mean), -1, keepdims=True)
        tf.multiply(x - mean, tf.math.rsqrt(squares / count + 1e-3), name="y")

    x = _float32(rng, 3, 7).astype(np.float64)
    centred = x - x.sum(-1, keepdims=True) / 3
    expected = centred / np.sqrt((centred**2).sum(-1, keepdims=True) / 3 + 1e-3)
    check(trace(make), {"x": x.astype(np.float32)}, expected, 0)


def test_reshape_that_permutes_an_unknown_axis(rng) -> None:
    """[?, 8] to [8, ?] keeps no axis: what is fused is the norm of [8, ?]."""

    def make() -> None:
        x = placeholder("x", (None, 8))
        tf.reshape(layer_norm(tf.reshape(x, [8, -1])), [-1, 8], name="y")

    x = _float32(rng, 3, 8)
    expected = oracle.layer_norm(x.reshape(8, 3), epsilon=1e-3).y.reshape(3, 8)
    check(trace(make), {"x": x}, expected, 1)


def test_reshape_that_permutes_an_unknown_inner_axis(rng) -> None:
    def make() -> None:
        x = placeholder("x", (2, None, 6))
        tf.reshape(layer_norm(tf.reshape(x, [2, 6, -1])), [2, -1, 6], name="y")

    x = _float32(rng, 2, 4, 6)
    expected = oracle.layer_norm(x.reshape(2, 6, 4), epsilon=1e-3).y.reshape(2, 4, 6)
    check(trace(make), {"x": x}, expected, 1)


@pytest.mark.parametrize("batch", [1, 3])
def test_squeeze_without_axes(rng, batch: int) -> None:
    """The unknown batch goes where it is 1."""

    def make() -> None:
        tf.identity(layer_norm(tf.squeeze(placeholder("x", (None, 8)))), name="y")

    x = _float32(rng, batch, 8)
    expected = np.squeeze(oracle.layer_norm(x, epsilon=1e-3).y)
    after, report = _rewritten_either_way(trace(make), x, expected)


def _rewritten_either_way(graph, x, expected):
    """Fused after the squeeze or not at all: either is right as long as the value is."""
    from recognizer_graphs import run

    from nv_norms_rewriter import rewrite

    after, report = rewrite(graph, fetches=["y"])
    got = run(after, {"x": x})
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, 2e-5, 2e-5)
    return after, report


@pytest.mark.parametrize("shape", [(8,), (3, 8), (2, 3, 8)])
def test_unknown_rank_over_the_last_axis(rng, shape: tuple[int, ...]) -> None:
    gamma = rng.uniform(0.5, 2, 8).astype(np.float32)

    def make() -> None:
        tf.identity(layer_norm(placeholder("x", None), gamma=tf.constant(gamma)), name="y")

    x = _float32(rng, *shape)
    check(trace(make), {"x": x}, oracle.layer_norm(x, gamma, epsilon=1e-3).y, 1)


def test_unknown_rank_over_axis_1_with_a_gamma_of_the_last(rng) -> None:
    gamma = rng.uniform(0.5, 2, 8).astype(np.float32)

    def make() -> None:
        tf.identity(layer_norm(placeholder("x", None), 1, gamma=tf.constant(gamma)), name="y")

    x = _float32(rng, 2, 8, 3, 8)
    _rewritten_either_way(trace(make), x, oracle.layer_norm(x, axis=1, epsilon=1e-3).y * gamma)


def test_unknown_rank_over_axis_1_is_said() -> None:
    from nv_norms_rewriter import rewrite

    def make() -> None:
        x = placeholder("x", None)
        mean, variance = tf.nn.moments(x, [1], keepdims=True)
        gamma = placeholder("gamma", (8,))
        tf.identity(tf.nn.batch_normalization(x, mean, variance, None, gamma, 1e-3), name="y")

    (record,) = rewrite(trace(make), fetches=["y"])[1]
    assert (record.fused, record.reason) == (False, "unknown_rank")


@pytest.mark.parametrize("size", [8, 1])
def test_gamma_whose_size_is_unknown(rng, size: int) -> None:
    def make() -> None:
        x, g = placeholder("x", (None, 8)), placeholder("g", (None,))
        tf.identity(layer_norm(x, gamma=g), name="y")

    from recognizer_graphs import run

    from nv_norms_rewriter import rewrite

    x, g = _float32(rng, 3, 8), rng.uniform(0.5, 2, size).astype(np.float32)
    after, _ = rewrite(trace(make), fetches=["y"])
    expected = oracle.layer_norm(x, epsilon=1e-3).y * g
    np.testing.assert_allclose(run(after, {"x": x, "g": g}), expected, 2e-5, 2e-5)


@pytest.mark.parametrize("known", [(5, 5), (None, None)])
def test_operand_beside_its_own_transpose(rng, known) -> None:
    """Two axes that each meet the other are found to be one, not each made of the other."""

    def make() -> None:
        x = placeholder("x", known)
        z = x / tf.reduce_sum(tf.minimum(x, 2.0), -1, keepdims=True)
        tf.identity(layer_norm(z + tf.transpose(z)), name="y")

    x = rng.uniform(0.5, 3.0, (5, 5)).astype(np.float32)
    z = x / np.minimum(x, 2).sum(-1, keepdims=True, dtype=np.float64)
    check(trace(make), {"x": x}, oracle.layer_norm(z + z.T, epsilon=1e-3).y, 1)


def test_empty_batch(rng) -> None:
    graph = trace(lambda: tf.identity(layer_norm(placeholder("x", (None, 8))), name="y"))
    check(graph, {"x": np.zeros((0, 8), np.float32)}, np.zeros((0, 8)), 1)


def test_nan_stays_in_its_row(rng) -> None:
    graph = trace(lambda: tf.identity(layer_norm(placeholder("x", (None, 8))), name="y"))
    x = _float32(rng, 3, 8)
    expected = oracle.layer_norm(x, epsilon=1e-3).y
    x[1, 3], expected[1] = np.nan, np.nan
    check(graph, {"x": x}, expected, 1)


@pytest.mark.parametrize(
    ("known", "shape", "to", "axes", "x_is"),
    [
        ((None, None), (5, 3), (3, 5), (1,), "reshaped:0"),
        ((None, None, 8), (4, 2, 8), (2, 4, 8), (1, 2), "reshaped:0"),
        ((None, 2, None), (3, 2, 5), (5, 2, 3), (0, 1, 2), "reshaped:0"),
        ((None, 5), (3, 5), (3, 5), (1,), "x:0"),
        ((3, None), (3, 5), (3, 5), (1,), "x:0"),
    ],
)
def test_reshape_of_unknown_sizes_to_constants(rng, known, shape, to, axes, x_is) -> None:
    """Two unknown sizes may be the other way round; a single one is told by the others."""

    def make() -> None:
        reshaped = tf.reshape(placeholder("x", known), to, name="reshaped")
        tf.reshape(layer_norm(reshaped, axes), shape, name="y")

    x = _float32(rng, *shape)
    expected = oracle.layer_norm(x.reshape(to), axis=axes, epsilon=1e-3).y.reshape(shape)
    _, (record,) = check(trace(make), {"x": x}, expected, 1)
    assert record.inputs[0] == x_is


@pytest.mark.parametrize("axes", [(-1, -1), (1, 2, -1)], ids=str)
def test_axis_that_is_named_twice(rng, axes: tuple[int, ...]) -> None:
    """TensorFlow says so when the graph runs, and still does."""
    from recognizer_graphs import run

    from nv_norms_rewriter import rewrite

    graph = trace(lambda: tf.identity(layer_norm(placeholder("x", (2, 3, 4)), axes), name="y"))
    after, report = rewrite(graph, fetches=["y"])
    assert not report.fused
    with pytest.raises(tf.errors.InvalidArgumentError, match="duplicate"):
        run(after, {"x": _float32(rng, 2, 3, 4)})
