"""Graphs that stay as they are: what XLA compiles, whichever tape comes later; and while another
thread edits them."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from traced import Layer

import nv_norms_rewriter
import oracle
from nv_norms_rewriter import _process, _saving, _trace


@pytest.fixture
def left_to_xla() -> Any:
    nv_norms_rewriter.configure(xla="none")
    yield
    nv_norms_rewriter.configure(xla="auto")


def test_function_of_an_xla_compiled_one_that_a_tape_outside_differentiates(
    layer: Layer, x: tf.Tensor, left_to_xla: None
) -> None:
    inner = tf.function(lambda x: tf.sin(layer(x)), autograph=False)
    inner(x)  # TensorFlow's optimizer fuses this
    outer = tf.function(lambda x: inner(x) * 2.0, autograph=False, jit_compile=True)
    nv_norms_rewriter.clear_report()
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = outer(x)
    tape.gradient(y, x)
    assert len(nv_norms_rewriter.report().fused) == 0


def test_xla_compiled_function_that_was_traced_while_disabled(
    layer: Layer, x: tf.Tensor, left_to_xla: None
) -> None:
    function = tf.function(lambda x: tf.sin(layer(x)), autograph=False, jit_compile=True)
    with nv_norms_rewriter.disabled():
        function(x)
    nv_norms_rewriter.clear_report()
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    tape.gradient(y, x)
    assert len(nv_norms_rewriter.report()) == 0


def test_loop_of_a_function_that_an_xla_compiled_one_differentiates(
    layer: Layer, x: tf.Tensor, left_to_xla: None
) -> None:
    def loop(x: tf.Tensor) -> tf.Tensor:
        body = lambda i, y: (i + 1, layer(y) + x)  # noqa: E731
        return tf.while_loop(lambda i, y: i < 2, body, (0, x), maximum_iterations=2)[1]

    inner = tf.function(loop, autograph=False)
    inner(x)

    @tf.function(autograph=False, jit_compile=True)
    def outer(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = inner(x)
        return tape.gradient(y, x)

    nv_norms_rewriter.clear_report()
    outer(x)
    assert len(nv_norms_rewriter.report().fused) == 0


def test_who_leaves_a_graph_waits_for_the_end_of_an_edit() -> None:
    graph = tf.Graph()
    leaving = threading.Thread(target=_trace.leave, args=[graph])
    with _process.state()["differentiated"]:
        leaving.start()
        leaving.join(0.2)
        assert leaving.is_alive()
    leaving.join(10)
    assert not leaving.is_alive()


@pytest.mark.parametrize("twice", [False, True])
def test_fused_ops_that_were_renamed_are_written_as_stock(
    rng: np.random.Generator, every_norm: None, twice: bool
) -> None:
    """Inlining and importing rename ops, but not what an op says of that which it replaced."""
    from tensorflow.python.framework import convert_to_constants

    values = rng.normal(size=(4, 16)).astype(np.float32)

    def norm(x: tf.Tensor) -> tf.Tensor:
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        return (x - mean) * tf.math.rsqrt(variance + 1e-3)

    inner = tf.function(norm, autograph=False)
    nv_norms_rewriter.configure(saved_models="fused")
    try:
        outer = tf.function(
            lambda x: (tf.sin(x) * 3.0, inner(x * x)), autograph=False, jit_compile=True
        )
        concrete = outer.get_concrete_function(tf.TensorSpec((4, 16)))
        frozen = convert_to_constants.convert_variables_to_constants_v2(concrete)
        graph_def = frozen.graph.as_graph_def()
    finally:
        nv_norms_rewriter.configure(saved_models="stock")
    assert any(_saving.MARK in node.attr for node in graph_def.node)
    with tf.Graph().as_default() as graph:
        for name in ("", "second") if twice else ("",):
            tf.import_graph_def(graph_def, name=name)
    written = graph.as_graph_def()
    assert not any(node.op.startswith("FusedLayerNorm") for node in written.node)
    expected = oracle.layer_norm(values**2, epsilon=1e-3).y
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(written, name="")
        with tf.compat.v1.Session(graph=graph) as session:
            for prefix in ("", "second/") if twice else ("",):
                feeds = {prefix + frozen.inputs[0].name: values}
                got = session.run(prefix + frozen.outputs[1].name, feeds)
                np.testing.assert_allclose(got, expected, 2e-5, 2e-5)
