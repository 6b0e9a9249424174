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
from keras_step import KerasStep

from fused_graphs import norm, trace


@pytest.fixture
def old_control_flow() -> Iterator[None]:
    v1.disable_control_flow_v2()
    yield
    v1.enable_control_flow_v2()


def test_graph_that_says_the_shapes_of_outputs(rng):
    """As export_meta_graph writes it; the op has other outputs than the activation."""
    with tf.Graph().as_default() as made:
        y = norm("instance", placeholder("x"), placeholder("gamma", [C]), placeholder("beta", [C]))
        activation(y[0], 0.0, name="a")
    graph = made.as_graph_def(add_shapes=True)
    after = rewritten(graph, ["a"])
    assert activations(graph) == ["a"] and activations(after) == []
    feeds = draw(rng)
    (want,), (got,) = run(graph, feeds, ["a"]), run(after, feeds, ["a"])
    np.testing.assert_allclose(got, want, 1e-5, 1e-5)


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


@pytest.mark.sampled(4)
@pytest.mark.parametrize("batch", [2, None])
@pytest.mark.parametrize(
    "policy",
    ["float32", "mixed_float16", pytest.param("mixed_bfloat16", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize(("groups", "slope"), [(-1, 0.0), (-1, 0.2), (2, 0.2)])
def test_keras_model_and_its_gradients(groups, slope, policy, batch, rng):
    def layer(policy):
        if slope:
            return keras.layers.LeakyReLU(slope, dtype=policy)
        return keras.layers.ReLU(dtype=policy)

    step = KerasStep(groups, layer, policy, batch)
    after = rewritten(step.graph, step.fetches)
    assert activations(after) == []
    assert slopes(after) == pytest.approx([slope] * 4)
    was, now = step.errors(step.graph, after, rng)
    assert now < 1.5 * was + 1e-5
