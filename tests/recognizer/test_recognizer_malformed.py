"""Graphs that are none: an error that says what is wrong, or the graph as it was. Never a crash."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from recognizer_graphs import layer_norm, moments, node, placeholder, run, trace

import nv_norms
from nv_norms_rewriter import rewrite


def _graph() -> tf.compat.v1.GraphDef:
    return trace(lambda: tf.identity(layer_norm(placeholder("x", (2, 8))), name="y"))


def test_missing_input_is_named() -> None:
    graph = _graph()
    node(graph, "y").input[0] = "nowhere"
    with pytest.raises(RuntimeError, match="y reads nowhere, which is not in the graph"):
        rewrite(graph)


def test_missing_control_input_is_named() -> None:
    graph = _graph()
    node(graph, "y").input.append("^nowhere")
    with pytest.raises(RuntimeError, match="nowhere"):
        rewrite(graph)


def test_name_used_twice_is_named() -> None:
    graph = _graph()
    graph.node.append(node(graph, "x"))
    with pytest.raises(RuntimeError, match="two nodes are named x"):
        rewrite(graph)


def test_unknown_op_is_named() -> None:
    graph = _graph()
    node(graph, "y").op = "NoSuchOp"
    with pytest.raises(RuntimeError, match="NoSuchOp"):
        rewrite(graph)


def test_missing_attribute_is_named() -> None:
    graph = _graph()
    constant = next(each for each in graph.node if each.op == "Const")
    del constant.attr["value"]
    with pytest.raises(RuntimeError, match=f"{constant.name} has no attribute value"):
        rewrite(graph)


def test_control_input_before_another_is_named() -> None:
    graph = _graph()
    node(graph, "y").input.insert(0, "^x")
    with pytest.raises(RuntimeError, match="y reads .* after a control input"):
        rewrite(graph)


@pytest.mark.parametrize("around", [1, 3])
@pytest.mark.parametrize("call", ["by its name", "PartitionedCall"])
def test_function_that_calls_itself_is_named(call: str, around: int) -> None:
    graph = _graph()
    for i in range(around):
        function = graph.library.function.add()
        function.signature.name = f"f{i}"
        function.signature.input_arg.add(name="x", type=tf.float32.as_datatype_enum)
        function.signature.output_arg.add(name="y", type=tf.float32.as_datatype_enum)
        each = function.node_def.add(name="call", input=["x"])
        callee = f"f{(i + 1) % around}"
        if call == "PartitionedCall":
            each.op = call
            each.attr["f"].func.name = callee
            for types in ("Tin", "Tout"):
                each.attr[types].list.type.append(tf.float32.as_datatype_enum)
            function.ret["y"] = "call:output:0"
        else:
            each.op = callee
            function.ret["y"] = "call:y:0"
    graph.node.add(name="called", op="f0", input=["x"])
    with pytest.raises(RuntimeError, match="the function f[0-2] calls itself"):
        rewrite(graph)


@pytest.mark.parametrize("op", ["Mean", "Mul", "Sub", "AddV2"])
def test_op_without_its_inputs(op: str) -> None:
    graph = _graph()
    for each in graph.node:
        if each.op == op:
            del each.input[:]
    with pytest.raises(RuntimeError, match=f"has 0 inputs, where a {op} needs 2"):
        rewrite(graph)


@pytest.mark.parametrize("op", ["Mean", "RsqrtGrad", "DestroyTemporaryVariable", "FusedLayerNorm"])
def test_op_without_its_inputs_that_nobody_needs(op: str) -> None:
    """TensorFlow infers no shapes of these, and so does not say it."""

    def make() -> None:
        x = placeholder("x", (2, 8))
        tf.identity(layer_norm(x), name="dead")
        tf.raw_ops.RsqrtGrad(y=x, dy=x)
        nv_norms.fused_layer_norm(x)
        tf.identity(layer_norm(placeholder("z", (2, 8))), name="y")

    graph = trace(make)
    if op == "DestroyTemporaryVariable":
        graph.node.add(name="destroy", op=op).attr["T"].type = tf.float32.as_datatype_enum
        node(graph, "destroy").attr["var_name"].s = b"v"
    dead = next(each for each in graph.node if each.op == op)
    del dead.input[:]
    with pytest.raises(RuntimeError, match=f"{dead.name} has 0 inputs, where a {op} needs"):
        rewrite(graph, fetches=["y"])


def test_port_that_does_not_exist() -> None:
    graph = _graph()
    node(graph, "y").input[0] += ":7"
    with pytest.raises(RuntimeError):
        rewrite(graph)


@pytest.mark.parametrize(
    "port", ["-1", "abc", "", "99999999999999999999", "4294967295", "4294967296"]
)
def test_port_that_is_no_number(port: str) -> None:
    graph = _graph()
    node(graph, "y").input[0] += ":" + port
    with pytest.raises(RuntimeError):
        rewrite(graph)


def test_cycle_of_identities_ends() -> None:
    def make() -> None:
        x = placeholder("x", (2, 8))
        tf.identity(layer_norm(x), name="y")
        tf.identity(tf.identity(x, name="a"), name="b")
        tf.math.rsqrt(tf.reduce_mean(tf.square(tf.identity(x, name="c")), -1) + 1e-3)

    graph = trace(make)
    node(graph, "a").input[0] = "b"
    node(graph, "c").input[0] = "b"
    try:
        after, _ = rewrite(graph, fetches=["y"])
    except RuntimeError:
        return
    assert node(after, "y")


def test_empty_graph_stays_empty() -> None:
    empty = tf.compat.v1.GraphDef()
    after, report = rewrite(empty)
    assert after == empty and len(report) == 0


def test_nodes_in_any_order(rng: np.random.Generator) -> None:
    graph = _graph()
    turned = tf.compat.v1.GraphDef()
    turned.CopyFrom(graph)
    del turned.node[:]
    turned.node.extend(reversed(graph.node))
    after, report = rewrite(turned, fetches=["y"])
    assert len(report.fused) == 1
    x = rng.normal(size=(2, 8)).astype(np.float32)
    np.testing.assert_allclose(run(after, {"x": x}), run(graph, {"x": x}), 1e-5, 1e-5)


@pytest.mark.parametrize(
    "ends", [(-(2**63), 2**63 - 1), (0, 2**62), (-(2**62) - 5, 2**62 + 5)], ids=str
)
def test_axes_of_a_range_that_does_not_end(ends: tuple[int, int]) -> None:
    _check_axes(lambda first, second: tf.range(first, second), ends)


def test_axes_of_a_quotient_that_there_is_not() -> None:
    _check_axes(lambda first, second: first // second, (-(2**63), -1))


def _check_axes(computed: Callable, numbers: tuple[int, int]) -> None:
    """Numbers that Python would refuse: the graph stays."""

    def make() -> None:
        first, second = (tf.constant(i, tf.int64, name=f"number_{i}") for i in (1, 2))
        tf.identity(
            layer_norm(placeholder("x", (None, None, 8)), computed(first, second)), name="y"
        )

    graph = trace(make)
    for i, number in enumerate(numbers, 1):
        value = tf.make_tensor_proto(np.int64(number))
        node(graph, f"number_{i}").attr["value"].tensor.CopyFrom(value)
    after, report = rewrite(graph, device="CPU", fetches=["y"])
    assert not report.fused and [n.name for n in after.node] == [n.name for n in graph.node]


@pytest.mark.parametrize("beside", ["a gradient", "a clamp"])
def test_sums_of_sums_of_one_tensor_end(beside: str) -> None:
    """As many ways lead through them as sixty to the sixth."""

    def make() -> None:
        x = placeholder("x", (4, 6))
        if beside == "a gradient":
            y = layer_norm(x, gamma=placeholder("g", (6,)))
            tf.identity(y, name="y")
            (dx,) = tf.gradients(y, [x], placeholder("dy", (4, 6)))
            many = placeholder("z", (4, 6))
            for _ in range(6):
                many = tf.add_n([many] * 60)
            tf.add_n([dx, many], name="dx")
        else:
            mean, many = moments(x)
            for _ in range(6):
                many = tf.add_n([many] * 60)
            variance = tf.maximum(many, 0.0) / 60.0**6
            tf.identity((x - mean) * tf.math.rsqrt(variance + 1e-3), name="y")

    start = time.monotonic()
    _, report = rewrite(trace(make), fetches=["y"] if beside == "a clamp" else ["y", "dx"])
    assert time.monotonic() - start < 30
    assert len(report.fused) >= 1
