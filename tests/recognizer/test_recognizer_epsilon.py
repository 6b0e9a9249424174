"""What is taken for epsilon, and what is not."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from recognizer_graphs import (
    check,
    fused_nodes,
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


def _x(rng: np.random.Generator, size: int = 8, dtype=np.float32) -> np.ndarray:
    """An ordinary row, a row with almost no variance, a row of zeros, a large one."""
    x = rng.normal(size=(4, size))
    return (x * np.array([[1.0], [1e-4], [0.0], [1e3]])).astype(dtype)


@pytest.mark.parametrize("epsilon", [1e-12, 1e-7, 1e-5, 1e-3, 0.5, 100.0])
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_epsilon_is_kept_to_the_last_digit(rng, epsilon: float, dtype: tf.DType) -> None:
    graph = trace(
        lambda: tf.identity(layer_norm(placeholder("x", (None, 8), dtype), -1, epsilon), name="y")
    )
    x = _x(rng, dtype=dtype.as_numpy_dtype)
    in_graph = float(np.asarray(epsilon, dtype.as_numpy_dtype))
    tolerance = 1e-11 if dtype == tf.float64 else 2e-5
    after, (record,) = check(
        graph, {"x": x}, oracle.layer_norm(x, epsilon=in_graph).y, 1, tolerance=tolerance
    )
    attr = fused_nodes(after)[0].attr
    assert attr["epsilon"].f + attr["epsilon_low"].f == pytest.approx(in_graph, rel=1e-14)
    assert record.epsilon == pytest.approx(in_graph, rel=1e-14)


def test_an_rms_norm_without_an_epsilon(rng) -> None:
    def make() -> None:
        x = placeholder("x", (None, 8))
        square = tf.reduce_mean(tf.square(x), -1, keepdims=True)
        tf.multiply(x, tf.math.rsqrt(square), name="y")

    x = rng.normal(size=(3, 8)).astype(np.float32)
    after, _ = check(trace(make), {"x": x}, oracle.rms_norm(x, epsilon=0.0).y, 1)
    assert fused_nodes(after)[0].attr["epsilon"].f == 0.0


def test_equal_numbers_without_an_epsilon() -> None:
    """Their mean is rounded: TensorFlow divides what is left by itself, and gives a number."""

    def make() -> None:
        x = placeholder("x", (None, None, 3))
        tf.divide(x - tf.reduce_mean(x), tf.math.reduce_std(x), name="y")

    graph = trace(make)
    blank = {"x": np.full((224, 224, 3), 0.3, np.float32)}
    after, report = rewrite(graph, fetches=["y"])
    assert [r.reason for r in report] == ["no_epsilon"]
    assert not fused_nodes(after)
    np.testing.assert_array_equal(run(after, blank, "y:0"), run(graph, blank, "y:0"))


@pytest.mark.parametrize("epsilon", [1e-32, 1e-36, 1e-38, 1e-40, 1e-46])
def test_epsilon_that_the_ops_would_lose_in_float64(rng, epsilon: float) -> None:
    """They hold two float32 numbers, and what is below the normal ones counts as 0."""
    gamma, beta = (rng.normal(size=8) for _ in range(2))

    def make() -> None:
        x = placeholder("x", (None, 8), tf.float64)
        y = layer_norm(x, -1, epsilon, tf.constant(gamma), tf.constant(beta))
        tf.identity(y, name="y")
        tf.gradients(y, x, tf.sin(y), name="dx")

    x = rng.normal(size=(4, 8)) * np.sqrt(epsilon) * np.array([[1.0], [1e-3], [0.0], [1e3]])
    exact = oracle.layer_norm(x, gamma, beta, epsilon=epsilon).y
    _, records = check(trace(make), {"x": x}, exact, 0, tolerance=1e-11)
    assert {r.reason for r in records} == {"epsilon_out_of_range"}
    assert records[0].epsilon == pytest.approx(epsilon, rel=1e-9)


@pytest.mark.parametrize("epsilon", [2.0**-120, 1e-28])
def test_small_epsilon_that_the_ops_can_hold(rng, epsilon: float) -> None:
    """Of a power of two the second number is 0."""

    def make() -> None:
        tf.identity(layer_norm(placeholder("x", (None, 8), tf.float64), -1, epsilon), name="y")

    x = rng.normal(size=(4, 8)) * np.sqrt(epsilon)
    check(trace(make), {"x": x}, oracle.layer_norm(x, epsilon=epsilon).y, 1, tolerance=1e-11)


def test_epsilon_in_float32_needs_one_number_only(rng) -> None:
    def make() -> None:
        tf.identity(layer_norm(placeholder("x", (None, 8)), -1, 1e-37), name="y")

    x = rng.normal(size=(4, 8)).astype(np.float32)
    check(trace(make), {"x": x}, oracle.layer_norm(x, epsilon=1e-37).y, 1)


def _refused(graph: tf.compat.v1.GraphDef, x: np.ndarray, expected: np.ndarray, **feeds) -> None:
    check(graph, {"x": x, **feeds}, expected, 0)


def test_epsilon_that_is_fed_is_no_constant(rng) -> None:
    def make() -> None:
        x, epsilon = placeholder("x", (None, 8)), placeholder("epsilon", ())
        tf.identity(layer_norm(x, -1, epsilon), name="y")

    x, epsilon = _x(rng), np.float32(0.25)
    _refused(trace(make), x, oracle.layer_norm(x, epsilon=0.25).y, epsilon=epsilon)
    _, report = rewrite(trace(make), fetches=["y"])
    assert {r.reason for r in report} <= {"epsilon_not_constant"}


def test_epsilon_that_varies_along_the_rows(rng) -> None:
    epsilon = np.array([[1e-3], [1e-2], [1e-1], [1.0]], np.float32)

    def make() -> None:
        tf.identity(layer_norm(placeholder("x", (4, 8)), -1, tf.constant(epsilon)), name="y")

    x = _x(rng)
    expected = np.concatenate([oracle.layer_norm(x[i : i + 1], epsilon=e[0]).y for i, e in
                               enumerate(epsilon)])  # fmt: skip
    _refused(trace(make), x, expected)


@pytest.mark.parametrize("epsilon", [1e-3, 1e-5, 1e-7, 1e-10, 1e-15, 1e-20])
def test_epsilon_outside_the_root(rng, epsilon: float) -> None:
    def make() -> None:
        x = placeholder("x", (None, 8))
        mean, variance = moments(x)
        tf.divide(x - mean, tf.sqrt(variance) + epsilon, name="y")

    x = _x(rng)
    centred = x.astype(np.float64) - x.mean(-1, dtype=np.float64, keepdims=True)
    root = np.sqrt((centred**2).mean(-1, keepdims=True))
    _refused(trace(make), x, centred / (root + np.float32(epsilon)))


@pytest.mark.parametrize("epsilon", [1e-3, 1e-5, 1e-7, 1e-9, 1e-12, 1e-16, 1e-20])
def test_largest_of_variance_and_epsilon(rng, epsilon: float) -> None:
    def make() -> None:
        x = placeholder("x", (None, 8))
        mean, variance = moments(x)
        tf.multiply(x - mean, tf.math.rsqrt(tf.maximum(variance, epsilon)), name="y")

    x = _x(rng)
    centred = x.astype(np.float64) - x.mean(-1, dtype=np.float64, keepdims=True)
    variance = (centred**2).mean(-1, keepdims=True)
    _refused(trace(make), x, centred / np.sqrt(np.maximum(variance, np.float32(epsilon))))


@pytest.mark.parametrize("size", [8, 768])
def test_unit_norm_times_root_of_size(rng, size: int) -> None:
    """tf.math.l2_normalize clamps the sum of squares: a row of zeros stays zeros."""

    def make() -> None:
        x = placeholder("x", (None, size))
        tf.multiply(tf.math.l2_normalize(x, -1), np.float32(np.sqrt(size)), name="y")

    x = _x(rng, size)
    squares = (x.astype(np.float64) ** 2).sum(-1, keepdims=True)
    expected = x * np.sqrt(size) / np.sqrt(np.maximum(squares, np.float32(1e-12)))
    _refused(trace(make), x, expected)


def test_inverse_root_that_is_zero_where_the_moment_is(rng) -> None:
    def make() -> None:
        x = placeholder("x", (None, 8))
        root = tf.sqrt(tf.reduce_mean(tf.square(x), -1, keepdims=True))
        tf.multiply(x, tf.math.divide_no_nan(1.0, root), name="y")

    x = _x(rng)
    squares = (x.astype(np.float64) ** 2).mean(-1, keepdims=True)
    expected = x / np.sqrt(np.where(squares == 0, 1.0, squares))
    _refused(trace(make), x, expected)


def test_largest_of_variance_and_zero_is_the_variance(rng) -> None:
    """E[x^2] - E[x]^2 is often clamped at zero; that changes nothing but rounding."""

    def make() -> None:
        x = placeholder("x", (None, 8))
        mean = tf.reduce_mean(x, -1, keepdims=True)
        variance = tf.reduce_mean(tf.square(x), -1, keepdims=True) - tf.square(mean)
        tf.multiply(x - mean, tf.math.rsqrt(tf.maximum(variance, 0.0) + 1e-3), name="y")

    x = rng.normal(size=(3, 8)).astype(np.float32)
    check(trace(make), {"x": x}, oracle.layer_norm(x, epsilon=1e-3).y, 1)


@pytest.mark.parametrize("epsilon", [0.0, 1e-3])
def test_quotient_that_is_zero_where_the_numerator_is(rng, epsilon: float) -> None:
    """Of a constant row it gives 0; without an epsilon the fused norm would give NaN."""

    def make() -> None:
        x = placeholder("x", (None, 8))
        d = x - tf.reduce_mean(x, -1, keepdims=True)
        root = tf.sqrt(tf.reduce_mean(d * d, -1, keepdims=True) + epsilon)
        tf.identity(tf.math.divide_no_nan(d, root), name="y")

    x = rng.normal(1.0, 2.0, (3, 8)).astype(np.float32)
    x[1] = 2.0
    d = x - x.mean(-1, keepdims=True, dtype=np.float64)
    root = np.sqrt((d * d).mean(-1, keepdims=True) + epsilon)
    expected = np.divide(d, root, out=np.zeros_like(d), where=root > 0)
    check(trace(make), {"x": x}, expected, 1 if epsilon else 0)


def _xdivy(x: tf.Tensor, root: tf.Tensor, gamma: tf.Tensor) -> tf.Tensor:
    return tf.math.xdivy(x * gamma, root)


def _mul_no_nan(x: tf.Tensor, root: tf.Tensor, gamma: tf.Tensor) -> tf.Tensor:
    return x * tf.raw_ops.MulNoNan(x=1 / root, y=gamma)


@pytest.mark.parametrize("norm", [_xdivy, _mul_no_nan])
def test_product_that_is_zero_beside_a_nan(rng, norm) -> None:
    """xdivy gives 0 for 0 / NaN, and multiply_no_nan for NaN * 0; a norm gives NaN."""
    gamma = np.float32([0, 1, 2, 3, 0, 1, 2, 3])

    def make() -> None:
        x, g = placeholder("x", (None, 8)), tf.constant(gamma)
        root = tf.sqrt(tf.reduce_mean(x * x, -1, keepdims=True) + 1e-3)
        y = norm(x, root, g)
        tf.identity(y, name="y")
        tf.identity(tf.gradients(y, x, tf.sin(y))[0], name="dx")

    graph = trace(make)
    x = _x(rng)
    x[1, 2] = np.nan
    after, _ = rewrite(graph, fetches=["y", "dx"])
    for stock, got in zip(
        *(run(g, {"x": x}, ["y:0", "dx:0"]) for g in (graph, after)), strict=True
    ):
        np.testing.assert_allclose(got, stock, 1e-5, 1e-5)


def test_epsilon_that_its_own_type_loses(rng) -> None:
    """1e8 + 1e-3 is 1e8 in float32, and 1e-9 is 0 in half."""

    def lost_in_a_sum() -> None:
        big = tf.constant(1e8)
        tf.identity(layer_norm(placeholder("x", (4, 6)), epsilon=(big + 1e-3) - big), name="y")

    def lost_in_a_cast() -> None:
        epsilon = tf.cast(tf.constant(1e-9), tf.half)
        tf.identity(layer_norm(placeholder("x", (4, 6), tf.half), epsilon=epsilon), name="y")

    x = (rng.normal(size=(4, 6)) * 1e-3).astype(np.float32)
    for make, value in ((lost_in_a_sum, x), (lost_in_a_cast, np.ones((4, 6), np.float16))):
        graph = trace(make)
        after, _ = rewrite(graph, fetches=["y"])
        stock, got = (run(each, {"x": value}) for each in (graph, after))
        np.testing.assert_allclose(stock, got, 2e-5, 2e-5)


_COMPUTED = {
    "square": (lambda c: tf.square(c(0.03)), 0.03**2),
    "square of a difference": (lambda c: tf.square(c(0.5) - c(0.25)), 0.0625),
    "abs": (lambda c: tf.abs(c(-0.01)), 0.01),
    "exp": (lambda c: tf.exp(c(-5.0)), np.exp(-5.0)),
    "pow": (lambda c: tf.pow(c(10.0), c(-3.0)), 1e-3),
    "pow of an exp": (lambda c: tf.pow(tf.exp(c(-1.0)), c(4.0)), np.exp(-4.0)),
}


@pytest.mark.parametrize("epsilon", _COMPUTED)
@pytest.mark.parametrize("dtype", [tf.float16, tf.float32, tf.float64], ids=lambda d: d.name)
def test_epsilon_that_is_a_function_of_constants(rng, epsilon: str, dtype: tf.DType) -> None:
    """Nothing folds it in a function that XLA compiles."""
    computed, exact = _COMPUTED[epsilon]

    def make() -> None:
        x = placeholder("x", (None, 8), dtype)
        tf.identity(layer_norm(x, -1, computed(lambda c: tf.constant(c, dtype))), name="y")

    x = rng.normal(size=(4, 8)) * np.array([[1.0], [0.1], [0.0], [10.0]])
    x = x.astype(dtype.as_numpy_dtype)
    tolerance = {tf.float16: 1e-2, tf.float32: 2e-5, tf.float64: 1e-11}[dtype]
    expected = oracle.layer_norm(x, epsilon=exact).y
    _, (record,) = check(trace(make), {"x": x}, expected, 1, tolerance=tolerance)
    digits = {tf.float16: 4e-3, tf.float32: 1e-6, tf.float64: 1e-14}[dtype]
    assert record.epsilon == pytest.approx(exact, rel=digits)


@pytest.mark.parametrize("function", [tf.square, tf.abs, tf.exp], ids=lambda f: f.__name__)
def test_function_of_a_fed_number_is_no_epsilon(rng, function) -> None:
    def make() -> None:
        x, number = placeholder("x", (None, 8)), placeholder("number", ())
        tf.identity(layer_norm(x, -1, function(number)), name="y")

    x, number = _x(rng), np.float32(-0.5)
    epsilon = float(function(tf.constant(number)))
    _refused(trace(make), x, oracle.layer_norm(x, epsilon=epsilon).y, number=number)


@pytest.mark.parametrize("base", [-1e-3, 1e30])
def test_power_that_is_no_finite_number_is_no_epsilon(rng, base: float) -> None:
    def make() -> None:
        epsilon = tf.pow(tf.constant(base), tf.constant(1.5))
        tf.identity(layer_norm(placeholder("x", (None, 8)), -1, epsilon), name="y")

    x = rng.normal(size=(4, 8)).astype(np.float32)
    expected = np.full(x.shape, np.nan if base < 0 else 0.0)
    _refused(trace(make), x, expected)


def test_largest_of_variance_and_a_function_of_constants(rng) -> None:
    """It is added nowhere, so it is no epsilon."""

    def make() -> None:
        x = placeholder("x", (None, 8))
        mean, variance = moments(x)
        floor = tf.square(tf.constant(0.5))
        tf.multiply(x - mean, tf.math.rsqrt(tf.maximum(variance, floor)), name="y")

    x = _x(rng)
    wide = x.astype(np.float64)
    centred = wide - wide.mean(-1, keepdims=True)
    _refused(trace(make), x, centred / np.sqrt(np.maximum(wide.var(-1, keepdims=True), 0.25)))


_LENGTHS = {
    "divided": lambda x, g, root: x / tf.norm(x, axis=-1, keepdims=True) * root * g,
    "by a quotient": lambda x, g, root: g * x / (tf.norm(x, axis=-1, keepdims=True) / root),
    "by a product": lambda x, g, root: x / (tf.norm(x, axis=-1, keepdims=True) * (1 / root)) * g,
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("jit", [False, True], ids=["", "compiled"])
@pytest.mark.parametrize("batch", [5, None], ids=["", "unknown"])
@pytest.mark.parametrize("gains", [(), (8,)], ids=["one gain", "gains"])
@pytest.mark.parametrize("norm", _LENGTHS)
def test_length_times_root_of_size(rng, norm: str, gains, batch: int | None, jit: bool) -> None:
    """An RMS norm without an epsilon. A row of zeros is 0 / 0 in both."""

    def step(x: tf.Tensor, g: tf.Tensor, dy: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch([x, g])
            y = _LENGTHS[norm](x, g, np.float32(np.sqrt(8)))
            loss = tf.reduce_sum(y * dy)
        return [y, *tape.gradient(loss, [x, g])]

    x, dy = (rng.normal(size=(5, 8)).astype(np.float32) for _ in range(2))
    x *= np.array([[1.0], [1e-6], [0.0], [1e6], [1.0]], np.float32)
    g = rng.uniform(0.5, 2.0, gains).astype(np.float32)
    signature = [tf.TensorSpec((batch, 8)), tf.TensorSpec(gains), tf.TensorSpec((batch, 8))]
    stock, fused = stock_and_fused(step, signature, [x, g, dy], jit)
    gamma = np.broadcast_to(g, 8)
    some = np.array([0, 1, 3, 4])
    y = oracle.rms_norm(x[some], gamma, epsilon=0.0).y
    dx = oracle.backward(dy[some], x[some], gamma, (1,), (1,), 0.0, subtract_mean=False).dx
    for got, before, exact in zip(fused[:2], stock[:2], (y, dx), strict=True):
        np.testing.assert_allclose(got[some], exact, 1e-4, 1e-30)
        np.testing.assert_allclose(before[some], exact, 1e-4, 1e-30)
        assert np.isnan(got[2]).all() and np.isnan(before[2]).all()
    assert np.isnan(fused[2]).all() and np.isnan(stock[2]).all()
    report = nv_norms_rewriter.report()
    assert report.fused[0].direction == "forward"
    if gains or (jit and norm != "by a quotient"):  # else the gain is multiplied with the root
        assert [r.direction for r in report] == ["forward", "backward"]
        assert not report.refused and not report[-1].leaves_dx


def test_length_times_another_number_must_not_fuse(rng) -> None:
    def make() -> None:
        x = placeholder("x", (None, 8))
        tf.multiply(x / tf.norm(x, axis=-1, keepdims=True), 2.0, name="y")

    x = rng.normal(size=(4, 8)).astype(np.float32)
    wide = x.astype(np.float64)
    _refused(trace(make), x, 2.0 * wide / np.sqrt((wide**2).sum(-1, keepdims=True)))
