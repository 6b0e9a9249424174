"""Tensors inside a norm that a trace has fused may be fed as before, in every copy of the graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from traced import EPSILON, Layer, close, ops_in

pytestmark = pytest.mark.usefixtures("every_norm")

SIZE = 8
MEAN = 0.25  # fed in the place of that of x


@pytest.fixture
def layer(rng: np.random.Generator) -> Layer:
    return Layer(rng, SIZE)


@pytest.fixture
def x(rng: np.random.Generator) -> np.ndarray:
    return rng.normal(2.0, 1.5, (5, SIZE)).astype(np.float32)


def _about_fed_mean(layer: Layer, x: np.ndarray) -> np.ndarray:
    """y = 2 * norm with `MEAN` for the mean of x, in the squares, too; float64."""
    centered = x.astype(np.float64) - MEAN
    xhat = centered / np.sqrt(np.mean(centered**2, -1, keepdims=True) + EPSILON)
    return 2 * (xhat * layer.gamma.numpy() + layer.beta.numpy())


def _mean_in(graph: Any) -> tf.Tensor:
    """That of x, the first one in the graph."""
    return next(op for op in graph.get_operations() if op.type == "Mean").outputs[0]


def _spelled(layer: Layer, x: tf.Tensor) -> tf.Tensor:
    mean = tf.reduce_mean(x, -1, keepdims=True)
    variance = tf.reduce_mean(tf.square(x - mean), -1, keepdims=True)
    xhat = (x - mean) * tf.math.rsqrt(variance + EPSILON)
    return 2 * (xhat * layer.gamma + layer.beta)


def _differentiate(function: Any, x: np.ndarray) -> None:
    with tf.GradientTape() as tape:
        given = tf.constant(x)
        tape.watch(given)
        y = function(given)
    tape.gradient(y, given)


@pytest.mark.parametrize("jit", [True, False], ids=["compiled", "tape"])
def test_imported_graph_takes_a_fed_mean(layer: Layer, x: np.ndarray, jit: bool) -> None:
    # Constants: a session has no variables of the program.
    gamma, beta = (tf.constant(v.numpy()) for v in (layer.gamma, layer.beta))
    layer.gamma, layer.beta = gamma, beta
    function = tf.function(lambda x: _spelled(layer, x), jit_compile=jit, autograph=False)
    concrete = function.get_concrete_function(tf.TensorSpec([None, SIZE]))
    _differentiate(concrete, x)
    assert "FusedLayerNorm" in ops_in(concrete.graph)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.import_graph_def(concrete.graph.as_graph_def(), name="")
        captured = {t.name: c.numpy() for c, t in concrete.graph.captures}
        feeds = {concrete.inputs[0].name: x, **captured}
        y = session.run(concrete.outputs[0].name, feeds)
        feeds[_mean_in(concrete.graph).name] = np.full((len(x), 1), MEAN, np.float32)
        fed = session.run(concrete.outputs[0].name, feeds)
    close(y, 2 * layer.exact(x))
    close(fed, _about_fed_mean(layer, x))


def test_pruned_function_takes_a_fed_mean_after_a_tape(layer: Layer, x: np.ndarray) -> None:
    wrapped = tf.compat.v1.wrap_function(
        lambda x: _spelled(layer, x), [tf.TensorSpec([None, SIZE])]
    )
    mean = tf.constant(MEAN, shape=(len(x), 1))
    for _ in range(2):  # before a tape, and after one
        pruned = wrapped.prune([wrapped.inputs[0], _mean_in(wrapped.graph)], wrapped.outputs)
        close(pruned(tf.constant(x), mean)[0], _about_fed_mean(layer, x))
        _differentiate(wrapped, x)


def test_no_graph_def_of_another_thread_has_a_fused_op(
    layer: Layer, x: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that writes a graph while another edits it gets what loads without the package."""
    from tensorflow.python.framework import ops

    make = ops.Graph._create_op_internal
    seen: list[str] = []
    made: list[str] = []

    def make_and_look(graph: Any, op_type: str, *arguments: Any, **keywords: Any) -> Any:
        op = make(graph, op_type, *arguments, **keywords)
        if op_type == "FusedLayerNorm" and op.name not in made:
            made.append(op.name)
            seen.extend(node.op for node in graph.as_graph_def().node)
        return op

    monkeypatch.setattr(ops.Graph, "_create_op_internal", make_and_look)
    concrete = tf.function(lambda x: _spelled(layer, x), autograph=False).get_concrete_function(
        tf.TensorSpec([None, SIZE])
    )
    _differentiate(concrete, x)
    assert made
    assert seen
    assert not [op for op in seen if op.startswith("Fused")]
