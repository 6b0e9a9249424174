"""Activations behind norms in branches, in loops, and in Keras' models."""

from __future__ import annotations

from collections.abc import Iterator

import keras
import numpy as np
import pytest
import tensorflow as tf
from activations_graphs import (
    KINDS,
    SHAPE,
    C,
    activation,
    activations,
    draw,
    oracle,
    placeholder,
    rewritten,
    run,
    slopes,
    v1,
)

import nv_norms_rewriter
from fused_graphs import norm, trace


@pytest.fixture
def old_control_flow() -> Iterator[None]:
    v1.disable_control_flow_v2()
    yield
    v1.enable_control_flow_v2()


@pytest.mark.parametrize("slope", [0.0, 0.2])
@pytest.mark.parametrize("kind", KINDS)
def test_in_a_loop(kind, slope, rng, old_control_flow):
    def make():
        gamma, beta = placeholder("gamma", [C]), placeholder("beta", [C])

        def body(i, x):
            y = norm(kind, x, gamma, beta)[0]
            return i + 1, activation(y, slope) + tf.cast(tf.shape(y)[0], tf.float32)

        tf.identity(tf.while_loop(lambda i, x: i < 2, body, (0, placeholder("x")))[1], name="a")

    graph = trace(make)
    assert "NextIteration" in {n.op for n in graph.node}
    after = rewritten(graph, ["a"])
    assert activations(after) == [] and slopes(after) == pytest.approx([slope])
    feeds = expected = draw(rng)
    for _ in range(2):
        expected = expected | {"x": oracle(kind, expected, slope)["a"] + SHAPE[0]}
    np.testing.assert_allclose(run(after, feeds, ["a"])[0], expected["x"], 1e-4, 1e-4)


@pytest.mark.parametrize("taken", [True, False])
@pytest.mark.parametrize("slope", [0.0, 0.2])
def test_in_a_branch(slope, taken, rng, old_control_flow):
    def make():
        x, p = placeholder("x"), placeholder("p", (), tf.bool)
        gamma, beta = placeholder("gamma", [C]), placeholder("beta", [C])

        def inside():
            return activation(norm("instance", x, gamma, beta)[0], slope)

        tf.identity(v1.cond(p, inside, lambda: tf.tanh(x)), name="a")

    graph = trace(make)
    after = rewritten(graph, ["a"])
    assert activations(after) == [] and slopes(after) == pytest.approx([slope])
    feeds = draw(rng)
    expected = oracle("instance", feeds, slope)["a"] if taken else np.tanh(feeds["x"])
    got = run(after, feeds | {"p": taken}, ["a"])[0]
    np.testing.assert_allclose(got, expected, 1e-4, 1e-5)


@pytest.mark.parametrize("taken", [True, False])
@pytest.mark.parametrize("slope", [0.0, 0.2])
def test_norm_outside_of_the_activations_branch_stays_there(slope, taken, rng, old_control_flow):
    """y goes through a Switch, and its statistics are read whichever branch is taken."""

    def make():
        p = placeholder("p", (), tf.bool)
        gamma, beta = placeholder("gamma", [C]), placeholder("beta", [C])
        y, mean, _ = norm("instance", placeholder("x"), gamma, beta)
        tf.identity(mean, name="mean")
        tf.identity(v1.cond(p, lambda: activation(y, slope), lambda: 2.0 * y), name="a")

    graph = trace(make)
    after = rewritten(graph, ["a", "mean"])
    assert after == graph
    feeds = draw(rng)
    expected = oracle("instance", feeds, slope if taken else 1.0)["a"]
    got = run(after, feeds | {"p": taken}, ["a"])[0]
    np.testing.assert_allclose(got, expected if taken else 2.0 * expected, 1e-4, 1e-5)


def _step(groups: int, slope: float, policy: str, batch: int | None):
    """y and the gradients of a model's weights, stock; and the shapes of the weights."""
    keras.utils.set_random_seed(3)
    wide = "float64" if policy == "float64" else "float32"
    x = inputs = keras.Input((6, 6, 4), dtype=wide)
    for _ in range(2):
        x = keras.layers.Conv2D(8, 3, padding="same", use_bias=False, dtype=policy)(x)
        x = keras.layers.GroupNormalization(groups, dtype=policy)(x)
        if slope:
            x = keras.layers.LeakyReLU(slope, dtype=policy)(x)
        else:
            x = keras.layers.ReLU(dtype=policy)(x)
    model = keras.Model(inputs, keras.layers.Conv2D(1, 3, dtype=wide)(x))

    def step(x, *weights):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            y, _ = model.stateless_call(weights, [], x)
            loss = tf.reduce_mean(tf.square(y))
        return [y, *tape.gradient(loss, weights)]

    shapes = [tuple(w.shape) for w in model.variables]
    specs = [tf.TensorSpec(s, wide) for s in ((batch, 6, 6, 4), *shapes)]
    with nv_norms_rewriter.disabled():
        return tf.function(step, autograph=False).get_concrete_function(*specs), shapes


def _relative_error(values: list[np.ndarray], exact: list[np.ndarray]) -> float:
    """Of all tensors together."""
    pairs = zip(values, exact, strict=True)
    return np.linalg.norm([np.linalg.norm(v - e) / np.linalg.norm(e) for v, e in pairs])


@pytest.mark.parametrize("batch", [2, None])
@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize(("groups", "slope"), [(-1, 0.0), (-1, 0.2), (2, 0.2)])
def test_keras_model_and_its_gradients(groups, slope, policy, batch, rng):
    traced, shapes = _step(groups, slope, policy, batch)
    graph = traced.graph.as_graph_def()
    fetches = [t.op.name for t in traced.outputs]
    after = rewritten(graph, fetches)
    assert activations(after) == []
    assert slopes(after) == pytest.approx([slope] * 4)
    wide = _step(groups, slope, "float64", batch)[0]
    errors = []
    for _ in range(5):
        given = [rng.normal(size=(2, 6, 6, 4)), *(rng.normal(size=s) / 3 for s in shapes)]
        given = [value.astype(np.float32) for value in given]
        exact = [t.numpy() for t in wide(*(tf.constant(v, tf.float64) for v in given))]
        feeds = dict(zip([t.op.name for t in traced.inputs], given, strict=True))
        was, now = (run(each, feeds, fetches) for each in (graph, after))
        assert [v.dtype for v in was] == [v.dtype for v in now]
        errors.append([_relative_error(values, exact) for values in (was, now)])
    # Where t is nearly 0, rounding decides its sign: single draws differ by a factor of 3.
    was, now = np.median(errors, 0)
    assert now < 1.5 * was + 1e-5, errors
