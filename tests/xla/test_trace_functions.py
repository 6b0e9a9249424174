"""Functions that XLA compiles are rewritten when they are traced, however they are put together."""

from __future__ import annotations

import concurrent.futures
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from traced import EPSILON, HERE, SHAPE, Layer, close, found, ops_in

import nv_norms_rewriter
import oracle

pytestmark = pytest.mark.usefixtures("every_norm")


def test_forward(layer: Layer, x: tf.Tensor) -> None:
    function = tf.function(lambda x: layer(x), jit_compile=True, autograph=False)
    close(function(x), layer.exact(x))
    (record,) = nv_norms_rewriter.report()
    assert (record.kind, record.fused, record.where) == ("layer_norm", True, "xla")
    assert record.dtype == "float32" and HERE in record.device
    assert ops_in(function.get_concrete_function(x).graph) == {"FusedLayerNorm"}


def test_traced_without_being_called(layer: Layer, x: tf.Tensor) -> None:
    function = tf.function(lambda x: layer(x), jit_compile=True, autograph=False)
    concrete = function.get_concrete_function(tf.TensorSpec([None, 5, 17]))
    assert ops_in(concrete.graph) == {"FusedLayerNorm"}
    close(concrete(x), layer.exact(x))


@pytest.mark.parametrize("shape", [[None, None, 17], [None, 5, None], [None] * 3, None])
def test_unknown_shapes(layer: Layer, x: tf.Tensor, shape: Any) -> None:
    function = tf.function(
        lambda x: layer(x), [tf.TensorSpec(shape)], jit_compile=True, autograph=False
    )
    close(function(x), layer.exact(x))
    close(function(x[:2]), layer.exact(x[:2]))


@pytest.mark.parametrize("shape", [SHAPE, [None, 5, 17]])
@pytest.mark.parametrize(
    "last",
    [
        lambda centred, root, gamma: centred * (1 / root),
        lambda centred, root, gamma: centred * gamma * (1 / root),
        lambda centred, root, gamma: (1 / root) * gamma * centred,
        lambda centred, root, gamma: (gamma / root) * centred,
    ],
)
def test_a_factor_of_another_shape_in_the_last_product(
    layer: Layer, x: tf.Tensor, dy: tf.Tensor, last: Any, shape: Any
) -> None:
    """It is read in the place of one that the mean of the squares went into."""

    def norm(x: tf.Tensor) -> tf.Tensor:
        centred = x - tf.reduce_mean(x, -1, keepdims=True)
        root = tf.sqrt(tf.reduce_mean(tf.square(centred), -1, keepdims=True) + EPSILON)
        return last(centred, root, layer.gamma)

    @tf.function(
        input_signature=[tf.TensorSpec(shape), tf.TensorSpec(SHAPE)],
        jit_compile=True,
        autograph=False,
    )
    def function(x: tf.Tensor, dy: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = norm(x)
        return y, tape.gradient(y, x, output_gradients=dy)

    y, dx = function(x, dy)
    gamma = np.ones(SHAPE[-1]) if last(2.0, 1.0, 3.0) == 2.0 else layer.gamma.numpy()
    close(y, oracle.layer_norm(x, gamma, None, -1, EPSILON).y)
    close(dx, oracle.backward(dy, x, gamma, (2,), (2,), EPSILON).dx)
    assert "cannot_be_edited" not in {record.reason for record in nv_norms_rewriter.report()}
    assert found() == 1


def test_a_norm_in_the_place_of_its_root(layer: Layer, x: tf.Tensor) -> None:
    """The gradient of gamma multiplies by it, which has another shape than the root."""

    @tf.function(jit_compile=True, autograph=False)
    def function(x: tf.Tensor, gamma: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch([x, gamma])
            half = x * 0.5
            centred = half - tf.reduce_mean(half, -1, keepdims=True)
            root = tf.sqrt(tf.reduce_mean(tf.square(centred), -1, keepdims=True) + EPSILON)
            y = centred * ((1 / root) * gamma) + gamma
            loss = tf.reduce_sum(tf.square(y))
        return tape.gradient(loss, [x, gamma])

    gamma = tf.random.stateless_normal(SHAPE, [1, 2]).numpy()
    dx, dgamma = function(x, gamma)
    xhat = oracle.layer_norm(0.5 * x.numpy(), None, None, -1, EPSILON).y
    dy = 2 * (xhat + 1) * gamma
    ones = np.ones(SHAPE[-1])
    close(dx, 0.5 * oracle.backward(dy * gamma, 0.5 * x.numpy(), ones, (2,), (2,), EPSILON).dx)
    close(dgamma, dy * (xhat + 1))
    assert found() > 0
    assert "cannot_be_edited" not in {record.reason for record in nv_norms_rewriter.report()}


def test_size_that_only_the_data_tell(layer: Layer, x: tf.Tensor) -> None:
    function = tf.function(
        lambda x, rows: layer(tf.boolean_mask(x, rows)), jit_compile=True, autograph=False
    )
    close(function(x, [True, False, True]), layer.exact(x.numpy()[[0, 2]]))


def test_function_in_a_function(layer: Layer, x: tf.Tensor, dy: tf.Tensor) -> None:
    inner = tf.function(lambda x: layer(x), autograph=False)

    @tf.function(jit_compile=True, autograph=False)
    def outer(x: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = inner(x)
        return y, tape.gradient(y, [x, layer.gamma, layer.beta], output_gradients=dy)

    y, gradients = outer(x)
    close(y, layer.exact(x))
    for actual, exact in zip(gradients, layer.exact_gradients(x, dy), strict=True):
        close(actual, exact)
    assert found() == 1
    assert ops_in(outer.get_concrete_function(x).graph) == {"FusedLayerNorm", "FusedLayerNormGrad"}
    close(inner(x), layer.exact(x))


def test_function_that_was_traced_before(layer: Layer, x: tf.Tensor) -> None:
    inner = tf.function(lambda x: layer(x), autograph=False)
    close(inner(x), layer.exact(x))
    outer = tf.function(lambda x: 2.0 * inner(x), jit_compile=True, autograph=False)
    close(outer(x), 2.0 * layer.exact(x))


def test_compiled_function_in_an_ordinary_one(layer: Layer, x: tf.Tensor) -> None:
    inner = tf.function(lambda x: layer(x), jit_compile=True, autograph=False)
    outer = tf.function(lambda x: layer(tf.nn.relu(inner(x))) + 1.0, autograph=False)
    close(outer(x), layer.exact(np.maximum(layer.exact(x), 0)) + 1.0)
    assert (found(), found(where="graph")) == (1, 1)


def test_branches(layer: Layer, x: tf.Tensor, dy: tf.Tensor) -> None:
    @tf.function(jit_compile=True, autograph=False)
    def function(x: tf.Tensor, positive: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.cond(positive, lambda: layer(x), lambda: layer(2.0 * x))
        return y, tape.gradient(y, [x, layer.gamma, layer.beta], output_gradients=dy)

    for positive, factor in ((True, 1.0), (False, 2.0)):
        y, gradients = function(x, tf.constant(positive))
        close(y, layer.exact(factor * x.numpy()))
        dx, dgamma, dbeta = layer.exact_gradients(factor * x.numpy(), dy)
        for actual, exact in zip(gradients, (factor * dx, dgamma, dbeta), strict=True):
            close(actual, exact)
    assert found() == 2
    graph = function.get_concrete_function(x, tf.constant(True)).graph
    assert ops_in(graph) == {"FusedLayerNorm", "FusedLayerNormGrad"}


def test_cases_and_maps(layer: Layer, x: tf.Tensor) -> None:
    @tf.function(jit_compile=True, autograph=False)
    def function(x: tf.Tensor, which: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        y = tf.switch_case(which, [lambda: layer(x), lambda: layer(x + 1.0), lambda: 2.0 * x])
        return y, tf.map_fn(layer, x)

    value = x.numpy()
    for which, exact in enumerate((layer.exact(value), layer.exact(value + 1.0), 2.0 * value)):
        y, mapped = function(x, tf.constant(which))
        close(y, exact)
        close(mapped, layer.exact(value))
    assert found() == 3


def test_recomputed_forward(layer: Layer, x: tf.Tensor, dy: tf.Tensor) -> None:
    @tf.function(jit_compile=True, autograph=False)
    def function(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.recompute_grad(lambda x: layer(tf.nn.relu(x)))(x)
        return y, tape.gradient(y, x, output_gradients=dy)

    y, dx = function(x)
    relu = np.maximum(x, 0.0)
    close(y, layer.exact(relu))
    close(dx, layer.exact_gradients(relu, dy)[0] * (x.numpy() > 0))
    assert found() >= 1


def test_threads_trace_at_once(rng: np.random.Generator, x: tf.Tensor, dy: tf.Tensor) -> None:
    layers = [Layer(rng, SHAPE[-1]) for _ in range(6)]

    def step(layer: Layer) -> list[tf.Tensor]:
        @tf.function(jit_compile=True, autograph=False)
        def function(x: tf.Tensor) -> list[tf.Tensor]:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = layer(x)
            return [y, tape.gradient(y, x, output_gradients=dy)]

        return function(x)

    with concurrent.futures.ThreadPoolExecutor(len(layers)) as pool:
        got = list(pool.map(step, layers))
    for layer, (y, dx) in zip(layers, got, strict=True):
        close(y, layer.exact(x))
        close(dx, layer.exact_gradients(x, dy)[0])
    assert (found(), found("backward")) == (len(layers), len(layers))


def test_loops(layer: Layer, x: tf.Tensor) -> None:
    def step(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            _, y = tf.while_loop(
                lambda i, _: i < 3,
                lambda i, y: (i + 1, layer(y + x)),
                (tf.constant(0), x),
                maximum_iterations=3,
            )
            loss = tf.reduce_sum(tf.sin(y))
        return [y, *tape.gradient(loss, [x, layer.gamma, layer.beta])]

    fused = tf.function(step, jit_compile=True, autograph=False)(x)
    assert found() == 1
    with nv_norms_rewriter.disabled():
        stock = tf.function(step, autograph=False)(x)
    y = x.numpy().astype(np.float64)
    for _ in range(3):
        y = layer.exact(y + x.numpy())
    close(fused[0], y)
    for actual, other in zip(fused, stock, strict=True):
        np.testing.assert_allclose(actual, other, 1e-4, 1e-4 * np.abs(other).max())


def test_variables_are_read_anew_and_shapes_traced_anew(layer: Layer, x: tf.Tensor) -> None:
    @tf.function(jit_compile=True, autograph=False)
    def function(x: tf.Tensor) -> tf.Tensor:
        y = layer(x)
        layer.beta.assign_add(tf.ones(SHAPE[-1]))
        return y

    for rows in (3, 3, 2):
        exact = layer.exact(x[:rows])
        close(function(x[:rows]), exact)
    assert found() == 2


def test_variables_made_in_the_function(x: tf.Tensor) -> None:
    made: list[tf.Variable] = []

    @tf.function(jit_compile=True, autograph=False)
    def function(x: tf.Tensor) -> tf.Tensor:
        if not made:
            made.append(tf.Variable(2.0))
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        return (x - mean) * tf.math.rsqrt(variance + 1e-3) * made[0]

    exact = function(x)
    value = x.numpy().astype(np.float64)
    centred = value - value.mean(-1, keepdims=True)
    close(exact, 2.0 * centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-3))
    assert found() == 1, "the trace that makes the variables does not count"


def test_named_device(rng: np.random.Generator, x: tf.Tensor) -> None:
    with tf.device("/CPU:0"):
        layer = Layer(rng, SHAPE[-1])

    @tf.function(jit_compile=True, autograph=False)
    def function(x: tf.Tensor) -> tf.Tensor:
        with tf.device("/CPU:0"):
            return layer(x)

    with tf.device("/CPU:0"):
        close(function(x), layer.exact(x))
    assert found() == 1


def test_output_that_is_read_inside_too(layer: Layer, x: tf.Tensor) -> None:
    @tf.function(jit_compile=True, autograph=False)
    def function(x: tf.Tensor) -> dict[str, Any]:
        y = layer(x)
        z = layer(y)
        return {"y": y, "both": (z, [y + z])}

    got = function(x)
    y = layer.exact(x)
    z = layer.exact(y)
    close(got["y"], y)
    close(got["both"][0], z)
    close(got["both"][1][0], y + z)
    assert found() == 2


def test_effects_are_kept_in_order(layer: Layer, x: tf.Tensor) -> None:
    seen = tf.Variable(tf.zeros(SHAPE))

    @tf.function(jit_compile=True, autograph=False)
    def function(x: tf.Tensor) -> tf.Tensor:
        y = layer(x)
        seen.assign(y)
        layer.gamma.assign(2.0 * layer.gamma)
        return layer(x) + seen

    first = layer.exact(x)
    beta = layer.beta.numpy().astype(np.float64)
    close(function(x), first + (2.0 * (first - beta) + beta))
    close(seen, first)
