"""x of unknown rank: what holds for every rank is fused, what holds for one alone is not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from recognizer_graphs import check, layer_norm, placeholder, run, trace

import oracle
from nv_norms_rewriter import rewrite

EPSILON = 1e-3


def _x(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(1.0, 2.0, shape).astype(np.float32)


def _rms_norm(x: tf.Tensor) -> tf.Tensor:
    return x * tf.math.rsqrt(tf.reduce_mean(tf.square(x), -1, keepdims=True) + EPSILON)


def _through(shape: Callable, norm: Callable = layer_norm) -> Callable:
    return lambda x: tf.reshape(norm(tf.reshape(x, shape(tf.shape(x)))), tf.shape(x))


def _mean_dropped(axis: int, put_back: Callable) -> Callable:
    def norm(x: tf.Tensor) -> tf.Tensor:
        mean = put_back(tf.reduce_mean(x, axis))
        variance = put_back(tf.reduce_mean(tf.square(x - mean), axis))
        return (x - mean) * tf.math.rsqrt(variance + EPSILON)

    return norm


def _counted(x: tf.Tensor) -> tf.Tensor:
    count = tf.cast(tf.shape(x)[1], tf.float32)
    squares = tf.reduce_sum(tf.square(x), -1, keepdims=True)
    return x * tf.math.rsqrt(squares / count + EPSILON)


def _axes_both_ways(x: tf.Tensor) -> tf.Tensor:
    mean = tf.reduce_mean(x, 1, keepdims=True)
    return (x - mean) * tf.math.rsqrt(
        tf.reduce_mean(tf.square(x - mean), -1, keepdims=True) + EPSILON
    )


_OF_ONE_RANK = {
    "flat": (_through(lambda s: [s[0], -1]), [(2, 3, 8), (3, 8), (8,)]),
    "flat.rms": (_through(lambda s: [s[0], -1], _rms_norm), [(2, 3, 8), (8,)]),
    "flat_from_2": (_through(lambda s: [s[0], s[1], -1]), [(2, 3, 2, 4), (2, 3, 4)]),
    "rows_not_folded": (lambda x: layer_norm(tf.reshape(x, [-1, tf.shape(x)[-1]])), [(2, 3, 8)]),
    "axis_1_put_back_last": (_mean_dropped(1, lambda m: m[..., None]), [(2, 6, 6), (3, 8)]),
    "last_put_back_at_1": (_mean_dropped(-1, lambda m: tf.expand_dims(m, 1)), [(6, 6, 6), (3, 8)]),
    "count_of_axis_1": (_counted, [(2, 3, 6), (3, 6)]),
    "axes_both_ways": (_axes_both_ways, [(2, 6, 6), (3, 8)]),
}


@pytest.mark.parametrize(
    ("norm", "shape"),
    [
        pytest.param(norm, shape, id=f"{name}.{len(shape)}")
        for name, (norm, shapes) in _OF_ONE_RANK.items()
        for shape in shapes
    ],
)
def test_norm_of_one_rank_alone(rng, norm: Callable, shape: tuple[int, ...]) -> None:
    """x itself is not taken; what it is reshaped to has a rank, and may be."""
    graph = trace(lambda: tf.identity(norm(placeholder("x", None)), name="y"))
    x = _x(rng, *shape)
    after, report = rewrite(graph, fetches=["y"])
    assert not any(record.inputs[0] == "x:0" for record in report.fused)
    try:
        want = run(graph, {"x": x})
    except tf.errors.InvalidArgumentError:
        with pytest.raises(tf.errors.InvalidArgumentError):
            run(after, {"x": x})
        return
    got = run(after, {"x": x})
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, 2e-5, 2e-5)


_OF_EVERY_RANK = {
    "keepdims": layer_norm,
    "put_back_last": _mean_dropped(-1, lambda m: m[..., None]),
    "rows": _through(lambda s: [-1, s[-1]]),
    "all_but_the_last": _through(lambda s: tf.stack([tf.reduce_prod(s[:-1]), s[-1]])),
}


@pytest.mark.parametrize("shape", [(8,), (3, 8), (2, 3, 8), (2, 3, 4, 8)], ids=len)
@pytest.mark.parametrize("norm", _OF_EVERY_RANK.values(), ids=_OF_EVERY_RANK)
def test_norm_of_every_rank(rng, norm: Callable, shape: tuple[int, ...]) -> None:
    graph = trace(lambda: tf.identity(norm(placeholder("x", None)), name="y"))
    x = _x(rng, *shape)
    _, (record,) = check(graph, {"x": x}, oracle.layer_norm(x, epsilon=EPSILON).y, 1)
    assert record.inputs[0] == "x:0" and record.axes == (-1,)


@pytest.mark.parametrize("shape", [(3, 8), (2, 3, 8), (2, 3, 4, 8)], ids=len)
def test_axis_counted_from_the_first(rng, shape: tuple[int, ...]) -> None:
    graph = trace(lambda: tf.identity(layer_norm(placeholder("x", None), 1), name="y"))
    x = _x(rng, *shape)
    _, (record,) = check(graph, {"x": x}, oracle.layer_norm(x, axis=1, epsilon=EPSILON).y, 1)
    assert record.axes == (1,)


def _check_gradient(rng, by_hand: Callable, shape: tuple[int, ...], want, fused: bool) -> None:
    """`by_hand`: dx and, perhaps, dgamma of dy, xhat * gamma, xhat, rstd and gamma."""
    gamma = rng.uniform(0.5, 2, 8).astype(np.float32)

    def make() -> None:
        x, dy, g = placeholder("x", None), placeholder("dy", None), tf.constant(gamma)
        mean = tf.reduce_mean(x, -1, keepdims=True)
        variance = tf.reduce_mean(tf.math.squared_difference(x, mean), -1, keepdims=True)
        rstd = tf.math.rsqrt(variance + EPSILON)
        xhat = (x - mean) * rstd
        tf.identity(xhat * g, name="y")
        for name, gradient in by_hand(dy, xhat, rstd, g).items():
            tf.identity(gradient, name=name)

    graph = trace(make)
    x, dy = _x(rng, *shape), rng.normal(size=shape).astype(np.float32)
    want = want(dy.astype(np.float64), x.astype(np.float64), gamma.astype(np.float64))
    after, report = rewrite(graph, fetches=["y", *want])
    for each in (graph, after):
        for name, value in want.items():
            got = run(each, {"x": x, "dy": dy}, f"{name}:0")
            np.testing.assert_allclose(got, value, 1e-4, 1e-4, err_msg=name)
    assert any(record.direction == "backward" for record in report.fused) == fused


def _dx_over(axis: int) -> tuple[Callable, Callable]:
    def by_hand(dy, xhat, rstd, g) -> dict:
        w = dy * g
        along = tf.reduce_mean(w * xhat, axis, keepdims=True)
        return {"dx": rstd * (w - tf.reduce_mean(w, axis, keepdims=True) - xhat * along)}

    def want(dy, x, gamma) -> dict:
        rstd = 1 / np.sqrt(x.var(-1, keepdims=True) + EPSILON)
        xhat, w = (x - x.mean(-1, keepdims=True)) * rstd, dy * gamma
        along = np.mean(w * xhat, axis, keepdims=True)
        return {"dx": rstd * (w - np.mean(w, axis, keepdims=True) - xhat * along)}

    return by_hand, want


@pytest.mark.parametrize("shape", [(8, 8), (8, 8, 8), (2, 3, 8, 8)], ids=len)
@pytest.mark.parametrize("axis", [-1, 0, 1, 2])
def test_gradient_that_counts_axes_another_way(rng, axis: int, shape: tuple[int, ...]) -> None:
    """A custom gradient may: with 3 axes, axis 2 is the last, and with 4 it is another."""
    if axis < len(shape):
        _check_gradient(rng, _dx_over(axis)[0], shape, _dx_over(axis)[1], fused=axis == -1)


@pytest.mark.parametrize("shape", [(8, 8), (3, 1, 8)], ids=len)
def test_dgamma_of_one_rank_alone(rng, shape: tuple[int, ...]) -> None:
    """Summed over axis 0, which is all but the last of a matrix; of others, it mostly fails."""

    def by_hand(dy, xhat, rstd, g) -> dict:
        sums = tf.reduce_sum(dy * xhat, 0)
        return _dx_over(-1)[0](dy, xhat, rstd, g) | {"dgamma": tf.reshape(sums, [8])}

    def want(dy, x, gamma) -> dict:
        xhat = oracle.layer_norm(x, epsilon=EPSILON).y
        return _dx_over(-1)[1](dy, x, gamma) | {"dgamma": (dy * xhat).sum(0).reshape(-1)}

    _check_gradient(rng, by_hand, shape, want, fused=False)


@pytest.mark.parametrize("shape", [(2, 3, 8), (3, 8)], ids=len)
def test_gradient_through_a_reshape(rng, shape: tuple[int, ...]) -> None:
    """dy has no rank beside the x that is fused, a matrix."""

    def make() -> None:
        x = placeholder("x", None)
        y = tf.identity(_through(lambda s: [s[0], -1])(x), name="y")
        tf.identity(tf.gradients(y, x, tf.sin(y))[0], name="dx")

    graph = trace(make)
    after, report = rewrite(graph, fetches=["y", "dx"])
    assert not any("x:0" in record.inputs for record in report.fused)
    x = _x(rng, *shape)
    rows = x.reshape(len(x), -1)
    y = oracle.layer_norm(rows, epsilon=EPSILON).y
    dx = oracle.backward(np.sin(y), rows, np.ones(rows.shape[1]), (-1,), (-1,), EPSILON)[0]
    for each in (graph, after):
        got = run(each, {"x": x}, ["y:0", "dx:0"])
        for one, want in zip(got, (y, dx), strict=True):
            np.testing.assert_allclose(one, want.reshape(shape), 1e-4, 1e-4)


def _rms_by_hand(tile: Callable, size: int) -> tuple[Callable, Callable]:
    """The gradient of an RMS norm as TensorFlow makes it where it knows x's shape."""

    def make(x: tf.Tensor, dy: tf.Tensor) -> None:
        squares = tf.reduce_mean(tf.square(x), -1, keepdims=True)
        rstd = tf.math.rsqrt(squares + EPSILON)
        tf.identity(x * rstd, name="y")
        along = tf.reduce_sum(dy * x, -1, keepdims=True)
        of_squares = tile(tf.raw_ops.RsqrtGrad(y=rstd, dy=along)) * (1 / size)
        tf.identity(2 * x * of_squares + dy * rstd, name="dx")

    def want(x: np.ndarray, dy: np.ndarray) -> np.ndarray:
        rstd = 1 / np.sqrt(np.mean(x**2, -1, keepdims=True) + EPSILON)
        return dy * rstd - x * rstd**3 * np.sum(dy * x, -1, keepdims=True) / size

    return make, want


@pytest.mark.parametrize(
    ("multiples", "size", "fused"),
    [((1, 8), 8, True), ((1, 1), 8, False), ((1, 1), 1, False), ((1, 8), 4, False), ((), 8, False)],
)
def test_gradient_that_is_tiled(rng, multiples: tuple[int, ...], size: int, fused: bool) -> None:
    """Nobody knows x's rank, and how often its moment's gradient is repeated tells its size."""
    make, want = _rms_by_hand(lambda t: tf.tile(t, multiples) if multiples else t, size)
    graph = trace(lambda: make(placeholder("x", None) + 1, placeholder("dy", (3, 8))))
    after, report = rewrite(graph, fetches=["y", "dx"])
    x, dy = _x(rng, 3, 8), rng.normal(size=(3, 8)).astype(np.float32)
    expected = want(x.astype(np.float64) + 1, dy.astype(np.float64))
    for each in (graph, after):
        got = run(each, {"x": x, "dy": dy}, "dx:0")
        np.testing.assert_allclose(got, expected, 1e-4, 1e-4)
    assert any(record.direction == "backward" for record in report.fused) == fused


_NORMS_OF_BATCHES = {
    "rms": (_rms_norm, (-1,), (4, 6)),
    "rms.4d": (_rms_norm, (-1,), (2, 3, 5, 6)),
    "layer": (layer_norm, (-1,), (4, 6)),
    "instance": (lambda x: layer_norm(x, [1, 2]), (1, 2), (2, 3, 5, 6)),
}


@pytest.mark.parametrize("name", _NORMS_OF_BATCHES)
def test_gradient_behind_an_op_of_unknown_shape(rng, name: str) -> None:
    """Such as a function that XLA compiles. Who took the gradient knew the shape."""
    norm, axes, shape = _NORMS_OF_BATCHES[name]
    gamma = rng.uniform(0.5, 2, shape[-1]).astype(np.float32)
    compiled = tf.function(tf.identity, jit_compile=True, autograph=False)

    def make() -> None:
        g = tf.constant(gamma)
        x = compiled(placeholder("x", shape))
        y = tf.identity(norm(x) * g, name="y")
        tf.identity(tf.gradients(y, x, tf.sin(placeholder("dy", shape)))[0], name="dx")

    graph = trace(make)
    x, dy = _x(rng, *shape), rng.normal(size=shape).astype(np.float32)
    after, report = rewrite(graph, fetches=["y", "dx"])
    dz = np.sin(dy.astype(np.float64))
    want = oracle.backward(dz, x, gamma, axes, (-1,), EPSILON, subtract_mean=norm != _rms_norm)
    for each in (graph, after):
        np.testing.assert_allclose(run(each, {"x": x, "dy": dy}, "dx:0"), want.dx, 1e-4, 1e-4)
    assert {record.direction for record in report.fused} == {"forward", "backward"}
