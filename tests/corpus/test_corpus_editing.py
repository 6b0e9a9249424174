"""Whatever the rewriter does to a graph, the graph stays valid and keeps its promises."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

import nv_norms_rewriter
from oracle import instance_norm
from oracle import layer_norm as textbook

from .builder import Builder
from .cases import load
from .graphs import (
    EPSILON,
    ancestors,
    by_name,
    fused_nodes,
    graph_of,
    layer_norm,
    parameters,
    run,
)
from .line import BATCH
from .modes import freeze, specs
from .values import draw_inputs, max_error

CPU = "/job:localhost/replica:0/task:0/device:CPU:0"
SHAPE = (3, 5, 8)


def placeholder(name="x", shape=SHAPE):
    return tf.compat.v1.placeholder(tf.float32, (None, *shape[1:]), name=name)


def values(shape=SHAPE, seed=7):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def expected(x, seed=0):
    return textbook(x, *parameters(x.shape[-1], seed), -1, EPSILON)


def rewrite(graph_def, *fetches):
    """The rewritten graph and its forward records; the argument must not change."""
    before = graph_def.SerializeToString(deterministic=True)
    result, report = nv_norms_rewriter.rewrite(graph_def, device="CPU", fetches=fetches)
    assert graph_def.SerializeToString(deterministic=True) == before
    return result, [record for record in report if record.direction == "forward"]


def fused_count(records):
    return sum(record.fused for record in records)


def assert_same_names(before, after, fetches):
    """Fetches keep their names, no name is given twice, no edge leads nowhere."""
    names = [node.name for node in after.node]
    assert len(names) == len(set(names))
    assert set(fetches) <= set(names)
    for node in after.node:
        for edge in node.input:
            assert edge.lstrip("^").partition(":")[0] in names, (node.name, edge)
    assert after.versions == before.versions


LINES = [line for table in ("keras3", "functions", "spellings", "contexts") for line in load(table)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("line", LINES, ids=lambda line: line.name)
def test_rewritten_graph_runs_and_second_pass_finds_nothing(line):
    builder = Builder(line, "float32", seed=11)
    frozen = freeze(line.make(builder), specs(line.inputs, builder.dtype, BATCH))
    before = frozen.graph.as_graph_def()
    fetches = [tensor.op.name for tensor in frozen.outputs]
    after, records = rewrite(before, *fetches)
    assert fused_count(records) == sum(line.expect.values()), [str(record) for record in records]
    assert_same_names(before, after, fetches)
    arrays = draw_inputs(line.inputs, "float32", seed=12)
    feeds = {tensor.name: x for tensor, x in zip(frozen.inputs, arrays, strict=True)}
    outputs = [tensor.name for tensor in frozen.outputs]
    for got, want in zip(run(after, outputs, feeds), run(before, outputs, feeds), strict=True):
        assert max_error(got, want) <= 1e-5 * max(1.0, np.abs(want).max())
    again, records = rewrite(after, *fetches)
    assert fused_count(records) == 0
    assert sorted(n.name for n in again.node) == sorted(n.name for n in after.node)


def test_every_attribute_of_a_fused_node_is_written():
    after, _ = rewrite(graph_of(lambda: layer_norm(placeholder())), "norm/y")
    for node in fused_nodes(after):
        op_def = op_def_registry.get(node.op)
        assert {attr.name for attr in op_def.attr} <= set(node.attr), node
    assert fused_nodes(after)


def test_fetched_output_keeps_its_name_and_value():
    x = values()
    after, records = rewrite(graph_of(lambda: layer_norm(placeholder())), "norm/y")
    assert fused_count(records) == 1
    (got,) = run(after, ["norm/y:0"], {"x:0": x})
    assert max_error(got, expected(x).y) < 1e-5


@pytest.mark.parametrize("inner", ["mean", "variance", "rstd", "xhat", "centered", "scaled"])
def test_fetched_inner_value_stays_and_y_is_fused(inner):
    before = graph_of(lambda: layer_norm(placeholder()))
    after, records = rewrite(before, "norm/y", f"norm/{inner}")
    assert fused_count(records) == 1
    x = values()
    want = run(before, ["norm/y:0", f"norm/{inner}:0"], {"x:0": x})
    got = run(after, ["norm/y:0", f"norm/{inner}:0"], {"x:0": x})
    for a, b in zip(got, want, strict=True):
        assert max_error(a, b) < 1e-5


def test_nodes_that_nobody_reads_any_more_are_gone():
    before = graph_of(lambda: tf.identity(layer_norm(placeholder()), "out"))
    after, _ = rewrite(before, "out")
    left = {node.name for node in after.node}
    assert not left & {"norm/mean", "norm/variance", "norm/rstd", "norm/xhat", "norm/scaled"}
    assert len(after.node) < len(before.node)


def test_control_input_of_the_norm_still_comes_first():
    def make():
        x = placeholder()
        with tf.control_dependencies([tf.no_op("before")]):
            tf.identity(layer_norm(x), "out")

    before = graph_of(make)
    assert "before" in ancestors(before, "out")
    after, records = rewrite(before, "out")
    assert fused_count(records) == 1
    assert "before" in ancestors(after, "out")


def test_control_output_of_every_inner_node_survives():
    """A node that waits for a removed node must still wait for what the removed node waited for."""

    def make():
        x = placeholder()
        with tf.control_dependencies([tf.no_op("before")]):
            y = layer_norm(x)
        tf.identity(y, "out")
        graph = tf.compat.v1.get_default_graph()
        inner = [f"norm/{name}" for name in ("mean", "centered", "rstd", "xhat", "scaled", "y")]
        for name in inner:
            with tf.control_dependencies([graph.get_operation_by_name(name)]):
                tf.no_op("after_" + name.partition("/")[2])

    before = graph_of(make)
    waiting = [f"after_{name}" for name in ("mean", "centered", "rstd", "xhat", "scaled", "y")]
    after, records = rewrite(before, "out", *waiting)
    assert fused_count(records) == 1
    assert_same_names(before, after, ["out", *waiting])
    for name in waiting:
        assert {"before", "x"} <= ancestors(after, name), name
    x = values()
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(after, name="")
    with tf.compat.v1.Session(graph=graph) as session:
        operations = [graph.get_operation_by_name(name) for name in waiting]
        session.run(operations, {"x:0": x})


def test_norm_used_for_control_only_is_left_alone():
    def make():
        x = placeholder()
        centered = x - tf.reduce_mean(x, -1, keepdims=True)
        variance = tf.reduce_mean(tf.square(centered), -1, keepdims=True)
        with tf.control_dependencies([centered * tf.math.rsqrt(variance + EPSILON)]):
            tf.no_op("out")

    before = graph_of(make)
    after, records = rewrite(before, "out")
    assert fused_count(records) == 0
    assert after == before


def test_what_waits_for_a_norm_still_waits_for_it():
    """The norm's last node is only waited for, but it reads the one before."""

    def make():
        with tf.control_dependencies([layer_norm(placeholder())]):
            tf.no_op("out")

    before = graph_of(make)
    after, _ = rewrite(before, "out")
    assert_same_names(before, after, ["out"])
    assert {"norm/y", "x"} <= ancestors(after, "out")


def test_dead_norm_is_left_alone():
    def make():
        x = placeholder()
        layer_norm(x)
        tf.identity(x, "out")

    before = graph_of(make)
    after, records = rewrite(before, "out")
    assert fused_count(records) == 0
    assert after == before


def test_input_port_is_kept():
    """x is the second output of a split; the first one holds other values."""

    def make():
        x = placeholder(shape=(4, 5, 8))
        tf.identity(layer_norm(tf.split(x, [2, 2])[1]), "out")

    before = graph_of(make)
    after, records = rewrite(before, "out")
    assert fused_count(records) == 1
    assert records[0].inputs[0].endswith(":1")
    x = values((4, 5, 8))
    (got,) = run(after, ["out:0"], {"x:0": x})
    assert max_error(got, expected(x[2:]).y) < 1e-5


def test_device_is_kept():
    def make():
        with tf.device(CPU):
            tf.identity(layer_norm(placeholder()), "out")

    after, records = rewrite(graph_of(make), "out")
    assert [node.device for node in fused_nodes(after)] == [CPU]
    assert [record.device for record in records if record.fused] == [CPU]


def test_norm_over_two_devices_is_left_alone():
    def make():
        x = placeholder()
        with tf.device(CPU):
            mean = tf.reduce_mean(x, -1, keepdims=True)
            variance = tf.reduce_mean(tf.math.squared_difference(x, mean), -1, keepdims=True)
            rstd = tf.math.rsqrt(variance + EPSILON)
        with tf.device(CPU.replace("CPU", "GPU")):
            tf.identity((x - mean) * rstd, "out")

    before = graph_of(make)
    after, records = rewrite(before, "out")
    assert fused_count(records) == 0
    assert after == before
    assert all(record.reason for record in records)


def test_nodes_colocated_with_a_removed_node_stay_valid():
    def make():
        x = placeholder()
        y = layer_norm(x)
        graph = tf.compat.v1.get_default_graph()
        with tf.compat.v1.colocate_with(graph.get_operation_by_name("norm/rstd")):
            tf.identity(y, "out")

    before = graph_of(make)
    assert by_name(before)["out"].attr["_class"].list.s == [b"loc:@norm/rstd"]
    after, records = rewrite(before, "out")
    assert fused_count(records) == 1
    x = values()
    (got,) = run(after, ["out:0"], {"x:0": x})
    assert max_error(got, expected(x).y) < 1e-5


def test_names_that_are_taken_are_not_taken_again():
    """The second graph holds nodes with the names that the rewriter invented for the first."""
    first = graph_of(lambda: tf.identity(layer_norm(placeholder()), "out"))
    invented = {n.name for n in rewrite(first, "out")[0].node} - {n.name for n in first.node}
    second = tf.compat.v1.GraphDef()
    second.CopyFrom(first)
    for name in invented:
        second.node.add(name=name, op="NoOp")
    after, records = rewrite(second, "out", *invented)
    assert fused_count(records) == 1
    assert_same_names(second, after, ["out", *invented])
    x = values()
    (got,) = run(after, ["out:0"], {"x:0": x})
    assert max_error(got, expected(x).y) < 1e-5


def test_two_copies_of_one_norm_are_both_fused():
    def make():
        x = placeholder()
        tf.identity(layer_norm(x, 0, "a") * layer_norm(x, 1, "b"), "out")

    after, records = rewrite(graph_of(make), "out")
    assert fused_count(records) == 2
    x = values()
    (got,) = run(after, ["out:0"], {"x:0": x})
    assert max_error(got, expected(x, 0).y * expected(x, 1).y) < 1e-4


def test_functions_of_the_library_are_kept():
    @tf.function
    def doubled(x):
        return x + x

    def make():
        concrete = doubled.get_concrete_function(tf.TensorSpec((None, 5, 8)))
        tf.identity(concrete(layer_norm(placeholder())), "out")

    before = graph_of(make)
    assert len(before.library.function) == 1
    after, records = rewrite(before, "out")
    assert fused_count(records) == 1
    assert after.library == before.library
    x = values()
    (got,) = run(after, ["out:0"], {"x:0": x})
    assert max_error(got, 2 * expected(x).y) < 1e-5


def test_graph_without_a_norm_is_returned_as_it_is():
    before = graph_of(lambda: tf.nn.softmax(placeholder(), name="out"))
    after, records = rewrite(before, "out")
    assert after == before
    assert not records


def test_nodes_in_any_order_are_understood():
    """A GraphDef need not be sorted: consumers may stand before producers."""
    forward = graph_of(lambda: tf.identity(layer_norm(placeholder()), "out"))
    before = tf.compat.v1.GraphDef()
    before.CopyFrom(forward)
    del before.node[:]
    before.node.extend(reversed(forward.node))
    after, records = rewrite(before, "out")
    assert fused_count(records) == 1
    x = values()
    (got,) = run(after, ["out:0"], {"x:0": x})
    assert max_error(got, expected(x).y) < 1e-5


def onednn_node(op, x, gamma, beta, name="norm", **attributes):
    """A node of an op that TensorFlow's own remapper makes, and that has a kernel on CPUs only."""
    graph = tf.compat.v1.get_default_graph()
    attr = {
        "T": tf.compat.v1.AttrValue(type=tf.float32.as_datatype_enum),
        "epsilon": tf.compat.v1.AttrValue(f=EPSILON),
    } | attributes
    operation = graph.create_op(op, [x, gamma, beta], [tf.float32], attrs=attr, name=name)
    return operation.outputs[0]


@pytest.mark.parametrize("op", ["_MklLayerNorm", "_MklFusedInstanceNorm"])
def test_op_of_the_cpu_on_a_gpu_node_becomes_ours(op):
    """TensorFlow's remapper puts them on GPU nodes too, where running them fails."""

    def make():
        with tf.device(CPU.replace("CPU", "GPU")):
            x = placeholder(shape=(3, 5, 4, 8))
            attributes = {}
            if op == "_MklFusedInstanceNorm":
                axes = tf.compat.v1.AttrValue(list=tf.compat.v1.AttrValue.ListValue(i=[1, 2]))
                attributes["reduction_axes"] = axes
            else:
                x = x[:, 0]
            gamma, beta = (tf.constant(value) for value in parameters(8, 0))
            tf.identity(onednn_node(op, x, gamma, beta, **attributes), "out")

    after, records = rewrite(graph_of(make), "out")
    assert fused_count(records) == 1
    assert op not in {node.op for node in after.node}
    for node in after.node:
        node.device = ""  # there may be no GPU here
    x = values((3, 5, 4, 8))
    (got,) = run(after, ["out:0"], {"x:0": x})
    gamma, beta = parameters(8, 0)
    want = (
        textbook(x[:, 0], gamma, beta, -1, EPSILON).y
        if op == "_MklLayerNorm"
        else instance_norm(x, gamma, beta, -1, EPSILON).y
    )
    assert max_error(got, want) < 1e-5


@pytest.mark.parametrize(
    ("device", "name", "epsilon", "reasons"),
    [
        ("GPU", "batchnorm/add_1", 1e-3, {"epsilon_lost"}),
        ("GPU", "ln/batchnorm_1/add_1", 1e-3, {"epsilon_lost"}),
        ("CPU", "batchnorm/add_1", 1e-3, {""}),
        ("GPU", "batchnorm/add_1", 1e-5, {""}),
        ("GPU", "layer_normalization/add", 1e-3, {""}),
    ],
)
def test_layer_norm_of_onednn_that_may_have_lost_its_epsilon(device, name, epsilon, reasons):
    """TensorFlow's remapper gives what was tf.nn.batch_normalization an epsilon of 0.001.

    Where that op has no kernel, an error is better than a result with another epsilon.
    """

    def make():
        with tf.device(CPU.replace("CPU", device)):
            gamma, beta = (tf.constant(value) for value in parameters(8, 0))
            value = tf.compat.v1.AttrValue(f=epsilon)
            x = placeholder(shape=(3, 5, 8))
            y = onednn_node("_MklLayerNorm", x, gamma, beta, name=name, epsilon=value)
            tf.identity(y, "out")

    _, records = rewrite(graph_of(make), "out")
    assert {record.reason for record in records} == reasons


@pytest.mark.parametrize("shape", [(6,), (1, 6), (1, 1, 6), (6, 1), (1, 6, 1, 1), (6, 1, 1)])
def test_instance_norm_of_onednn_whose_scale_runs_along_another_axis_is_left(shape):
    """TensorFlow's remapper does not look where the graph's gamma ran: its shape still tells."""

    def make():
        with tf.device(CPU.replace("CPU", "GPU")):
            axes = tf.compat.v1.AttrValue(list=tf.compat.v1.AttrValue.ListValue(i=[2, 3]))
            gamma, beta = (tf.constant(value.reshape(shape)) for value in parameters(6, 0))
            x = placeholder(shape=(2, 6, 6, 6))
            tf.identity(
                onednn_node("_MklFusedInstanceNorm", x, gamma, beta, reduction_axes=axes), "out"
            )

    _, records = rewrite(graph_of(make), "out")
    runs_along_channels = len(shape) >= 3 and shape[-3] == 6
    assert [record.reason for record in records] == [
        "" if runs_along_channels else "parameter_varies"
    ]


@pytest.mark.parametrize("device", ["CPU", "GPU"])
def test_layer_norm_of_onednn_whose_scale_is_no_vector_is_left(device):
    """TensorFlow makes one graph of two norms, which it cannot run ("scale must be 1D tensor").

    Over the last axis with a gamma of shape (1, 5, 8), and over the last two axes: nothing in
    what becomes of them tells which of them was meant.
    """

    def make():
        with tf.device(CPU.replace("CPU", device)):
            gamma, beta = (tf.constant(value.reshape(1, 5, 8)) for value in parameters(40, 0))
            tf.identity(
                onednn_node("_MklLayerNorm", placeholder(shape=(3, 5, 8)), gamma, beta), "out"
            )

    after, records = rewrite(graph_of(make), "out")
    assert fused_count(records) == 0
    assert [record.reason for record in records] == ["parameter_varies"]
    assert "_MklLayerNorm" in {node.op for node in after.node}
