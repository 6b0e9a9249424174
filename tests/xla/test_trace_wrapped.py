"""tf.compat.v1.wrap_function, and what TensorFlow wraps to save it, around rewritten functions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from saved import holds_fused_ops
from traced import close

import oracle

pytestmark = pytest.mark.usefixtures("every_norm")

EPSILON, SHAPE = 1e-3, (4, 8)
SIGNATURE = [tf.TensorSpec(SHAPE, tf.float32)]


def norm(x: tf.Tensor) -> tf.Tensor:
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + EPSILON)


def branch(x: tf.Tensor) -> tf.Tensor:
    return tf.cond(tf.reduce_sum(x) > -1e9, lambda: norm(x), lambda: x)


def gradient(y: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    return tf.gradients(y * y * y, x)[0]


def exact(x: np.ndarray) -> np.ndarray:
    y = oracle.layer_norm(x, epsilon=EPSILON).y
    return oracle.backward(3 * y * y, x, None, (1,), (1,), EPSILON).dx


@pytest.fixture
def x(rng) -> np.ndarray:
    return rng.normal(1, 2, SHAPE).astype(np.float32)


@pytest.mark.parametrize("jit", [False, True], ids=["ordinary", "compiled"])
def test_function_with_the_gradient_of_a_branch(x, jit: bool) -> None:
    step = tf.function(lambda x: gradient(branch(x), x), jit_compile=jit, autograph=False)
    close(step(tf.constant(x)), exact(x))
    close(tf.compat.v1.wrap_function(step, SIGNATURE)(tf.constant(x)), exact(x))


def test_gradient_of_a_branch_in_the_wrapped_function(x) -> None:
    wrapped = tf.compat.v1.wrap_function(lambda x: gradient(branch(x), x), SIGNATURE)
    close(wrapped(tf.constant(x)), exact(x))


def test_function_that_a_tape_outside_has_differentiated(x) -> None:
    inner = tf.function(norm)
    given = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(given)
        y = inner(given)
    tape.gradient(y, given)
    wrapped = tf.compat.v1.wrap_function(lambda x: gradient(inner(x), x), SIGNATURE)
    close(wrapped(given), exact(x))


def test_wrapped_loop_that_is_differentiated_and_pruned(x) -> None:
    def loop(x: tf.Tensor) -> tf.Tensor:
        return tf.while_loop(lambda i, _: i < 1, lambda i, x: (i + 1, norm(x)), (0, x))[1]

    wrapped = tf.compat.v1.wrap_function(loop, SIGNATURE)
    given = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(given)
        y = wrapped(given)
        loss = y * y * y
    close(tape.gradient(loss, given), exact(x))
    pruned = wrapped.prune(wrapped.inputs[0], wrapped.outputs[0])
    close(pruned(given), oracle.layer_norm(x, epsilon=EPSILON).y)


@pytest.mark.parametrize("called", [False, True], ids=["traced", "called"])
@pytest.mark.parametrize("around", [lambda y: y * 2, None], ids=["call", "cond"])
def test_graph_of_a_rewritten_function_imported_again(x, around, called: bool) -> None:
    """Which has the names of the functions in it, and what they were before."""
    inner = tf.function(norm, jit_compile=True, autograph=False)

    @tf.function(autograph=False)
    def outer(x: tf.Tensor) -> tf.Tensor:
        if around is not None:
            return around(inner(x))
        return tf.cond(tf.reduce_sum(x) > -1e9, lambda: inner(x) * 2, lambda: x)

    given = tf.constant(x)
    if called:
        outer(given)
    graph = outer.get_concrete_function(given).graph
    imported = graph.as_graph_def()
    wrapped = tf.compat.v1.wrap_function(lambda: tf.import_graph_def(imported, name=""), [])
    ends = [wrapped.graph.as_graph_element(t.name) for t in (graph.inputs[0], graph.outputs[0])]
    close(wrapped.prune(*ends)(given), 2 * oracle.layer_norm(x, epsilon=EPSILON).y)


@pytest.mark.parametrize("jit", [False, True], ids=["ordinary", "compiled"])
def test_saved_dataset_that_maps_a_rewritten_function(x, jit: bool, tmp_path: Path) -> None:
    step = tf.function(lambda x: gradient(branch(x), x), jit_compile=jit, autograph=False)
    close(step(tf.constant(x)), exact(x))
    module = tf.Module()
    module.dataset = tf.data.Dataset.from_tensors(x).map(step)
    module.total = tf.function(
        lambda: module.dataset.reduce(tf.zeros(SHAPE), tf.add), input_signature=[]
    )
    tf.saved_model.save(module, str(tmp_path))
    assert not holds_fused_ops(tmp_path)
    close(tf.saved_model.load(str(tmp_path)).total(), exact(x))
