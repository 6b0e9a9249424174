"""The function library of a GraphDef: bodies are rewritten, signatures stay, calls work."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from recognizer_graphs import FUSED, fused_nodes, layer_norm, placeholder, run, trace, v1

import nv_norms_rewriter
import oracle
from nv_norms_rewriter import rewrite


def _fused_in_functions(graph: v1.GraphDef) -> int:
    return sum(n.op in FUSED for f in graph.library.function for n in f.node_def)


def _x(rng: np.random.Generator) -> np.ndarray:
    return rng.normal(1.0, 2.0, (3, 8)).astype(np.float32)


def test_body_of_a_called_function(rng) -> None:
    @tf.function
    def inner(x, gamma):
        return layer_norm(x, gamma=gamma), tf.reduce_mean(x)

    def make() -> None:
        y, mean = inner(placeholder("x", (None, 8)), placeholder("g", (8,)))
        tf.add(y, mean, name="y")

    graph = trace(make)
    after, report = rewrite(graph, fetches=["y"])
    assert len(report.fused) == 1 and not fused_nodes(after)
    assert _fused_in_functions(after) == 1
    for old, new in zip(graph.library.function, after.library.function, strict=True):
        assert old.signature.name == new.signature.name
        assert [a.type for a in old.signature.output_arg] == [
            a.type for a in new.signature.output_arg
        ]
    x, g = _x(rng), rng.uniform(0.5, 2, 8).astype(np.float32)
    expected = oracle.layer_norm(x, g, epsilon=1e-3).y + x.mean()
    np.testing.assert_allclose(run(after, {"x": x, "g": g}), expected, 2e-5, 2e-5)


def test_body_of_a_functional_loop_and_branch(rng) -> None:
    def make() -> None:
        x = placeholder("x", (None, 8))

        def body(i, h):
            y = tf.cond(i > 0, lambda: layer_norm(h), lambda: layer_norm(h, -1, 0.5))
            return i + 1, tf.ensure_shape(h + y, (None, 8))

        tf.identity(tf.while_loop(lambda i, h: i < 3, body, [0, x])[1], name="y")

    graph = trace(make)
    assert {"While", "StatelessWhile"} & {n.op for n in graph.node}
    after, report = rewrite(graph, fetches=["y"])
    assert len(report.fused) == _fused_in_functions(after) == 2
    expected = x = _x(rng)
    for step in range(3):
        expected = expected + oracle.layer_norm(expected, epsilon=1e-3 if step else 0.5).y
    np.testing.assert_allclose(run(after, {"x": x}), expected, 5e-5, 5e-5)


def test_gradient_of_a_function_is_still_that_of_the_norm(rng) -> None:
    """A custom gradient's functions lie in the library too."""

    @tf.custom_gradient
    def norm(x):
        y = layer_norm(x)
        return y, lambda dy: 3.0 * layer_norm(dy)

    def make() -> None:
        x = placeholder("x", (None, 8))
        y = norm(x)
        tf.identity(tf.gradients(y, x, placeholder("dy", (None, 8)))[0], name="y")

    graph = trace(make)
    after, _ = rewrite(graph, fetches=["y"])
    x, dy = _x(rng), _x(rng)
    expected = 3.0 * oracle.layer_norm(dy, epsilon=1e-3).y
    np.testing.assert_allclose(run(after, {"x": x, "dy": dy}), expected, 2e-5, 2e-5)


def test_function_that_is_never_called_stays_callable(rng) -> None:
    @tf.function(input_signature=[tf.TensorSpec(None)])
    def lonely(x):
        return layer_norm(x)

    def make() -> None:
        lonely.get_concrete_function().add_to_graph()
        tf.identity(placeholder("x", (None, 8)), name="y")

    after, _ = rewrite(trace(make), fetches=["y"])
    name = after.library.function[0].signature.name
    call = after.node.add(name="called", op="PartitionedCall", input=["y"])
    call.attr["Tin"].list.type.append(tf.float32.as_datatype_enum)
    call.attr["Tout"].list.type.append(tf.float32.as_datatype_enum)
    call.attr["f"].func.name = name
    x = _x(rng)
    expected = oracle.layer_norm(x, epsilon=1e-3).y
    np.testing.assert_allclose(run(after, {"x": x}, "called:0"), expected, 2e-5, 2e-5)


@pytest.mark.parametrize("also_called", [False, True])
def test_what_xla_compiles_stays_and_is_named(rng, also_called: bool) -> None:
    """TensorFlow's optimizer sees neither such a function nor what only that calls."""

    @tf.function
    def inner(x):
        return layer_norm(x)

    compiled = tf.function(lambda x: tf.exp(inner(x)), jit_compile=True)

    @tf.function
    def outer(x):
        y = compiled(x) + layer_norm(x, -1, 0.5)
        return y + inner(x) if also_called else y

    graph = trace(lambda: tf.identity(outer(placeholder("x", (3, 8))), name="y"))
    with nv_norms_rewriter.disabled():
        after, report = rewrite(graph, fetches=["y"])
    reasons = sorted(record.reason for record in report)
    assert reasons == (["", ""] if also_called else ["", "compiled_by_xla"])
    assert _fused_in_functions(after) == reasons.count("")
    x = _x(rng)
    first = oracle.layer_norm(x, epsilon=1e-3).y
    expected = np.exp(first) + oracle.layer_norm(x, epsilon=0.5).y + also_called * first
    np.testing.assert_allclose(run(after, {"x": x}), expected, 2e-5, 2e-5)
