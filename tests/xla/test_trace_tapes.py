"""Gradients of functions that XLA compiles, by tapes inside, outside, and in one another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from traced import EPSILON, SHAPE, Layer, close, found

import nv_norms_rewriter
import oracle

pytestmark = pytest.mark.usefixtures("every_norm")


def test_tape_inside(layer: Layer, x: tf.Tensor, dy: tf.Tensor) -> None:
    @tf.function(jit_compile=True, autograph=False)
    def function(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
        return tape.gradient(y, [x, layer.gamma, layer.beta], output_gradients=dy)

    for actual, exact in zip(function(x), layer.exact_gradients(x, dy), strict=True):
        close(actual, exact)


def check_differentiated(
    layer: Layer, function: Any, x: tf.Tensor, dy: tf.Tensor, persistent: bool = False
) -> None:
    """`function`, which computes the layer, and what a tape outside of it makes of that."""
    with tf.GradientTape(persistent=persistent) as tape:
        tape.watch(x)
        y = function(x)
    close(y, layer.exact(x))
    gradients = tape.gradient(y, [x, layer.gamma, layer.beta], output_gradients=dy)
    for actual, exact in zip(gradients, layer.exact_gradients(x, dy), strict=True):
        close(actual, exact)


@pytest.mark.parametrize("persistent", [False, True])
def test_tape_outside(
    layer: Layer,
    x: tf.Tensor,
    dy: tf.Tensor,
    persistent: bool,
    made_for_tapes: Callable[[], set[str]],
) -> None:
    function = tf.function(lambda x: layer(x), jit_compile=True, autograph=False)
    check_differentiated(layer, function, x, dy, persistent)
    assert "FusedLayerNormGrad" in made_for_tapes()


@pytest.fixture
def made_for_tapes() -> Callable[[], set[str]]:
    """Tells the fused ops in the backward functions that the runtime has got since."""
    from tensorflow.python.eager import context

    runtime = context.context()

    def backward_functions() -> set[Any]:
        return {name for name in runtime.list_function_names() if "__backward_" in str(name)}

    before = backward_functions()

    def ops() -> set[str]:
        made = backward_functions() - before
        nodes = [node for name in made for node in runtime.get_function_def(name).node_def]
        return {node.op for node in nodes if node.op.startswith("Fused")}

    return ops


@pytest.mark.parametrize("nested", [False, True])
def test_tape_outside_of_an_ordinary_function(
    layer: Layer,
    x: tf.Tensor,
    dy: tf.Tensor,
    nested: bool,
    made_for_tapes: Callable[[], set[str]],
) -> None:
    function = inner = tf.function(lambda x: layer(x), autograph=False)
    if nested:
        function = tf.function(lambda x: inner(x), autograph=False)
    close(function(x), layer.exact(x))
    assert not made_for_tapes()
    check_differentiated(layer, function, x, dy)
    assert found(where="tape") == 1 and made_for_tapes() == {"FusedLayerNormGrad"}
    for fetch in (function, function.get_concrete_function(x)):
        close(fetch(x), layer.exact(x))
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner_tape:
            inner_tape.watch(x)
            y = function(x)
        dx = inner_tape.gradient(y, x, output_gradients=dy)
    close(dx, layer.exact_gradients(x, dy)[0])
    assert outer.gradient(dx, x).shape == x.shape


@pytest.mark.parametrize("compiled", [False, True])
def test_tape_outside_behind_an_embedding(
    layer: Layer, rng: np.random.Generator, dy: tf.Tensor, compiled: bool
) -> None:
    """Rows of a variable, whose shape only the variable's handle tells; an axis counted from the
    first needs it."""
    table = tf.Variable(rng.normal(size=(9, SHAPE[-1])), dtype=tf.float32)
    ids = tf.constant(rng.integers(0, 9, SHAPE[:-1]))

    def embed(ids: tf.Tensor) -> tf.Tensor:
        x = tf.gather(table, ids)
        gamma, beta = (tf.reshape(v, [1, 1, -1]) for v in (layer.gamma, layer.beta))
        mean, variance = tf.nn.moments(x, [2], keepdims=True)
        return tf.nn.batch_normalization(x, mean, variance, beta, gamma, EPSILON)

    function = tf.function(embed, jit_compile=compiled, autograph=False)
    with tf.GradientTape() as tape:
        y = function(ids)
    x = table.numpy()[ids.numpy()]
    close(y, layer.exact(x))
    gradients = tape.gradient(y, [table, layer.gamma, layer.beta], output_gradients=dy)
    dx, *rest = layer.exact_gradients(x, dy)
    of_rows = np.zeros(table.shape)
    np.add.at(of_rows, ids.numpy(), dx)
    close(tf.convert_to_tensor(gradients[0]), of_rows)
    for actual, exact in zip(gradients[1:], rest, strict=True):
        close(actual, exact)
    where = "xla" if compiled else "tape"
    assert found(where=where) == found("backward", where) == 1


def test_tapes_in_tapes(
    layer: Layer, x: tf.Tensor, dy: tf.Tensor, rng: np.random.Generator
) -> None:
    function = tf.function(lambda x: layer(x), jit_compile=True, autograph=False)
    into = rng.normal(size=SHAPE)
    with tf.GradientTape() as outer:
        outer.watch([x, dy])
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = function(x)
        dx = inner.gradient(y, x, output_gradients=dy)
        total = tf.reduce_sum(dx * tf.constant(into, tf.float32))
    assert found() == 1
    point = [x, dy, layer.gamma]
    gradients = [g.numpy().astype(np.float64) for g in outer.gradient(total, point)]

    def exact(x: np.ndarray, dy: np.ndarray, gamma: np.ndarray) -> float:
        return np.sum(oracle.backward(dy, x, gamma, (2,), (2,), EPSILON).dx * into)

    at = [value.numpy().astype(np.float64) for value in point]
    for i, gradient in enumerate(gradients):
        step = [np.zeros_like(value) for value in at]
        step[i] = 1e-6 * rng.normal(size=at[i].shape)
        ahead, behind = (
            exact(*[value + sign * s for value, s in zip(at, step, strict=True)])
            for sign in (1, -1)
        )
        along = np.sum(gradient * step[i])
        assert along == pytest.approx(
            (ahead - behind) / 2, rel=1e-4, abs=1e-4 * np.abs(step[i]).max()
        )


def test_forward_accumulator(layer: Layer, x: tf.Tensor, dy: tf.Tensor) -> None:
    function = tf.function(lambda x: layer(x), jit_compile=True, autograph=False)
    with tf.autodiff.ForwardAccumulator(x, dy) as accumulator:
        y = function(x)
    assert found() >= 1
    step = 1e-6 * dy.numpy().astype(np.float64)
    at = x.numpy().astype(np.float64)
    exact = (layer.exact(at + step) - layer.exact(at - step)) / 2e-6
    np.testing.assert_allclose(accumulator.jvp(y), exact, 1e-4, 1e-4 * np.abs(exact).max())


def test_branches_with_the_tape_outside(layer: Layer, x: tf.Tensor, dy: tf.Tensor) -> None:
    @tf.function(jit_compile=True, autograph=False)
    def function(x: tf.Tensor, positive: tf.Tensor) -> tf.Tensor:
        return tf.cond(positive, lambda: layer(x), lambda: layer(2.0 * x))

    check_differentiated(layer, lambda x: function(x, tf.constant(True)), x, dy)


def two_norms(rng: np.random.Generator) -> list[keras.Layer]:
    """Two layer norms of six channels."""
    norms = [keras.layers.LayerNormalization(epsilon=EPSILON) for _ in range(2)]
    for norm in norms:
        norm.build((None, None, 6))
        norm.set_weights([rng.uniform(0.5, 1.5, 6), rng.normal(size=6)])
    return norms


def weights(layer: keras.Layer) -> list[np.ndarray]:
    return [np.float64(v) for v in layer.get_weights()]


def compiled_step(
    function: Callable[[tf.Tensor], tf.Tensor], norms: list[keras.Layer], batch: int | None
) -> Callable[..., list[tf.Tensor]]:
    """y = function(x), and from dy the gradients of x and of the norms' parameters."""
    params = [v.value for norm in norms for v in norm.trainable_variables]
    spec = tf.TensorSpec((batch, 5, 6), tf.float32)

    @tf.function(jit_compile=True, autograph=False, input_signature=[spec, spec])
    def step(x: tf.Tensor, dy: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return [y, *tape.gradient(y, [x, *params], dy)]

    return step


@pytest.mark.parametrize("batch", [4, None])
def test_each_of_two_norms_of_one_tensor_has_its_own_gradient(
    rng: np.random.Generator, batch: int | None
) -> None:
    """dgamma and dbeta of the one are what those of the other would be, had it that dy."""
    x, dy = (rng.normal(1.0, 2.0, (4, 5, 6)).astype(np.float32) for _ in range(2))
    layers = two_norms(rng)
    params = [v.value for layer in layers for v in layer.trainable_variables]
    spec = tf.TensorSpec((batch, 5, 6), tf.float32)

    @tf.function(jit_compile=True, autograph=False, input_signature=[spec, spec])
    def function(x: tf.Tensor, dy: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x + tf.tanh(layers[0](x)) + tf.sin(layers[1](x))
        return tape.gradient(y, [x, *params], dy)

    got = function(x, dy)
    records = [r for r in nv_norms_rewriter.report() if r.direction == "backward"]
    assert [(r.fused, len(r.outputs)) for r in records] == [(True, 3)] * 2
    dx, expected = np.float64(dy), []
    for layer, slope in zip(layers, (lambda y: 1 - np.tanh(y) ** 2, np.cos), strict=True):
        gamma, beta = weights(layer)
        y = oracle.layer_norm(x, gamma, beta, -1, EPSILON).y
        more, *rest = oracle.backward(dy * slope(y), x, gamma, (2,), (2,), EPSILON)
        dx, expected = dx + more, expected + rest
    for actual, exact in zip(got, [dx, *expected], strict=True):
        close(actual, exact)


@pytest.mark.parametrize("batch", [4, None])
def test_blocks_of_two_norms_each(rng: np.random.Generator, batch: int | None) -> None:
    """x + a(x) + b(x) W, again and again: b, too, finds what it is differentiated by."""
    x, dy = (rng.normal(1.0, 2.0, (4, 5, 6)).astype(np.float32) for _ in range(2))
    blocks = []
    for _ in range(3):
        dense = keras.layers.Dense(6, use_bias=False)
        dense.build(x.shape)
        dense.set_weights([rng.normal(size=(6, 6)) / 3])
        blocks.append((*two_norms(rng), dense))
    params = [v.value for a, b, _ in blocks for v in a.trainable_variables + b.trainable_variables]
    spec = tf.TensorSpec((batch, 5, 6), tf.float32)

    @tf.function(jit_compile=True, autograph=False, input_signature=[spec, spec])
    def function(x: tf.Tensor, dy: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x
            for a, b, dense in blocks:
                beside = dense(b(y))
                y = y + a(y) + beside
        return tape.gradient(y, [x, *params], dy)

    got = function(x, dy)
    records = [r for r in nv_norms_rewriter.report() if r.direction == "backward"]
    assert [(r.fused, len(r.outputs)) for r in records] == [(True, 3)] * 6
    inputs = [np.float64(x)]
    for a, b, dense in blocks:
        y_a, y_b = (oracle.layer_norm(inputs[-1], *weights(n), -1, EPSILON).y for n in (a, b))
        inputs.append(inputs[-1] + y_a + y_b @ weights(dense)[0])
    dx, expected = np.float64(dy), []
    for (a, b, dense), before in zip(blocks[::-1], inputs[-2::-1], strict=True):
        by = {a: dx, b: dx @ weights(dense)[0].T}
        parts = [oracle.backward(by[n], before, weights(n)[0], (2,), (2,), EPSILON) for n in by]
        dx = dx + sum(more for more, *_ in parts)
        expected = [gradient for _, *rest in parts for gradient in rest] + expected
    for actual, exact in zip(got, [dx, *expected], strict=True):
        close(actual, exact)


@pytest.mark.parametrize("batch", [4, None])
def test_norm_of_a_norm_that_others_read(rng: np.random.Generator, batch: int | None) -> None:
    """y + b(y) + tanh(y) of y = a(x), as encoders begin: a finds what it is differentiated by."""
    x, dy = (rng.normal(1.0, 2.0, (4, 5, 6)).astype(np.float32) for _ in range(2))
    a, b = two_norms(rng)

    def function(x: tf.Tensor) -> tf.Tensor:
        y = a(x)
        return y + b(y) + tf.tanh(y)

    got = compiled_step(function, [a, b], batch)(x, dy)
    records = [r for r in nv_norms_rewriter.report() if r.direction == "backward"]
    assert [(r.fused, len(r.outputs)) for r in records] == [(True, 3)] * 2
    y = oracle.layer_norm(np.float64(x), *weights(a), -1, EPSILON).y
    z = y + np.tanh(y) + oracle.layer_norm(y, *weights(b), -1, EPSILON).y
    of_y, *of_b = oracle.backward(np.float64(dy), y, weights(b)[0], (2,), (2,), EPSILON)
    of_y = of_y + dy + dy * (1 - np.tanh(y) ** 2)
    expected = oracle.backward(of_y, np.float64(x), weights(a)[0], (2,), (2,), EPSILON)
    for actual, exact in zip(got, [z, *expected, *of_b], strict=True):
        close(actual, exact)


@pytest.mark.parametrize("batch", [4, None])
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_norm_beside_a_scaled_embedding(
    rng: np.random.Generator, batch: int | None, scale: float
) -> None:
    """scale x + a(x) W of x = 3 e, as transformers begin: the norm's x is not e, whose gradient is
    not a sum of the norm's and another."""
    e, dy = (rng.normal(1.0, 2.0, (4, 5, 6)).astype(np.float32) for _ in range(2))
    a, _ = two_norms(rng)
    dense = keras.layers.Dense(6, use_bias=False)
    dense.build(e.shape)

    def function(e: tf.Tensor) -> tf.Tensor:
        x = e * 3.0
        return dense(a(x)) + (x if scale == 1 else x * scale)

    got = compiled_step(function, [a], batch)(e, dy)
    records = [(r.fused, len(r.outputs)) for r in nv_norms_rewriter.report()]
    assert records == [(True, 1), (True, 3)]
    x, w = 3 * np.float64(e), weights(dense)[0]
    y = scale * x + oracle.layer_norm(x, *weights(a), -1, EPSILON).y @ w
    dx, *of_a = oracle.backward(dy @ w.T, x, weights(a)[0], (2,), (2,), EPSILON)
    for actual, exact in zip(got, [y, 3 * (dx + scale * dy), *of_a], strict=True):
        close(actual, exact)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("batch", [2, None])
def test_blocks_of_a_norm_beside_attention(rng: np.random.Generator, batch: int | None) -> None:
    """Attention to x itself: much follows from dy, and each gradient is whole all the same."""
    keras.utils.set_random_seed(3)
    x = inputs = keras.Input((8, 12), dtype="float64")
    for _ in range(3):
        a = keras.layers.LayerNormalization(dtype="float64")(x)
        attention = keras.layers.MultiHeadAttention(3, 4, dtype="float64")(a, x)
        b = keras.layers.LayerNormalization(dtype="float64")(x)
        x = x + attention + keras.layers.Dense(12, "gelu", dtype="float64")(b)
    model = keras.Model(inputs, x)
    params = [v.value for v in model.trainable_variables]
    spec = tf.TensorSpec((batch, 8, 12), tf.float64)

    def step(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_mean(model(x) ** 2)
        return tape.gradient(loss, [x, *params])

    x = rng.normal(size=(2, 8, 12))
    with nv_norms_rewriter.disabled():
        expected = step(tf.constant(x))
    got = tf.function(step, jit_compile=True, input_signature=[spec])(x)
    records = [r for r in nv_norms_rewriter.report() if r.direction == "backward"]
    assert [(r.fused, len(r.outputs)) for r in records] == [(True, 3)] * 6
    for actual, exact in zip(got, expected, strict=True):
        np.testing.assert_allclose(actual, exact, rtol=1e-9, atol=1e-12)
