"""Transposes that stay: the graph is not touched, and the report says why where there is a why."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from layout_graphs import check, check_unchanged, oracle, to_first, to_last, transposes

import nv_norms_rewriter
from fused_graphs import norm, ops_behind, placeholder, run, trace

FIRST, LAST = (2, 6, 5, 3), (2, 5, 3, 6)
v1 = tf.compat.v1


def between_transposes(make_y, x_shape=FIRST):
    """y = T(make_y(T(x)))"""

    def make():
        x = to_last(placeholder("x", x_shape), name="there")
        tf.identity(to_first(make_y(x), name="back"), name="y")

    return trace(make)


def test_nothing_to_gain():
    """Last on one side, first on the other: one Transpose either way."""

    def make():
        y = norm("instance", placeholder("x", LAST))[0]
        tf.identity(to_first(tf.nn.relu(y)), name="y")

    check_unchanged(trace(make), ["y"])


def test_not_a_transpose_more():
    """Large x channels first, three small readers channels last: one large Transpose would become
    three small ones."""

    def make():
        y = norm("instance", to_last(placeholder("x", FIRST)))[0]
        for number in range(3):
            part = tf.slice(y, [0, number, 0, 0], [2, 1, 3, 6])
            tf.identity(part, name=f"y{number}")

    check_unchanged(trace(make), ["y0", "y1", "y2"])


def test_as_many_transposes_of_fewer_bytes(rng):
    """Large x channels first, one small reader channels last: only what is read is transposed."""
    shape = (2, 8, 32, 16)

    def make():
        y = norm("instance", to_last(placeholder("x", shape)))[0]
        tf.identity(tf.slice(y, [0, 1, 0, 0], [2, 2, 16, 8], name="part"), name="y")

    x = rng.normal(size=shape).astype(np.float32)
    expected = oracle("instance", x, last=False).transpose(0, 2, 3, 1)[:, 1:3]
    after = check(trace(make), {"x": x}, {"y": expected}, before=1, after=1)
    (left,) = (node for node in after.node if node.op == "Transpose")
    assert left.input[0] == "part"


def test_fetched_transposes_stay():
    graph = between_transposes(lambda x: norm("instance", x)[0])
    check_unchanged(graph, ["there", "back"])


def test_fetched_norm_keeps_its_layout():
    graph = between_transposes(lambda x: norm("instance", x, name="norm")[0])
    check_unchanged(graph, ["y", "norm"], "preserved")


def test_statistics_may_be_fetched_through_others(rng):
    """mean is [N, C] in either layout."""

    def make():
        y, mean, _ = norm("instance", to_last(placeholder("x", FIRST)))
        tf.identity(mean, name="mean")
        tf.identity(to_first(y), name="y")

    x = rng.normal(size=FIRST).astype(np.float32)
    expected = {"y": oracle("instance", x, last=False), "mean": x.mean((2, 3))}
    check(trace(make), {"x": x}, expected, before=2, after=0)


@pytest.mark.parametrize("order", [[0, 1, 3, 2], [0, 2, 1, 3], [3, 0, 1, 2], [2, 0, 3, 1]])
def test_other_permutations_stay(order):
    back = np.argsort(order)

    def make():
        y = norm("layer", tf.transpose(placeholder("x", LAST), order))[0]
        tf.identity(tf.transpose(y, back), name="y")

    check_unchanged(trace(make), ["y"])


def test_permutation_that_is_computed_stays():
    def make():
        order = placeholder("order", [4], tf.int32)
        y = norm("instance", tf.ensure_shape(tf.transpose(placeholder("x", FIRST), order), LAST))
        tf.identity(to_first(y[0]), name="y")

    check_unchanged(trace(make), ["y"])


def test_unknown_rank():
    """One Transpose tells the rank; of the other nothing is known."""

    def make():
        x = tf.transpose(placeholder("x", None), placeholder("order", None, tf.int32))
        y = norm("instance", x)[0]
        tf.identity(tf.transpose(y, [0, 3, 1, 2]), name="y")

    check_unchanged(trace(make), ["y"])


def test_rank_that_only_the_transposes_tell(rng):
    def make():
        x = tf.transpose(placeholder("x", None), [0, 2, 3, 1])
        y = norm("instance", x)[0]
        tf.identity(tf.transpose(tf.nn.relu(y), [0, 3, 1, 2]), name="y")

    x = rng.normal(size=FIRST).astype(np.float32)
    expected = np.maximum(oracle("instance", x, last=False), 0)
    check(trace(make), {"x": x}, {"y": expected}, before=2, after=0)


def test_gamma_along_several_axes():
    gamma = np.ones(5 * 3 * 6, np.float32)
    graph = between_transposes(
        lambda x: norm("layer", x, tf.constant(gamma.reshape(5, 3, 6)), axis=[1, 2, 3])[0]
    )
    check_unchanged(graph, ["y"], "parameter_order")


def test_statistics_that_would_be_permuted():
    """Normalized over the height only: rstd is [N, W, C], or [N, C, W]."""

    def make():
        y, rstd = norm("rms", to_last(placeholder("x", FIRST)), axis=[1])
        tf.identity(rstd, name="rstd")
        tf.identity(to_first(y), name="y")

    check_unchanged(trace(make), ["y", "rstd"], "statistics_order")


def test_transposes_of_another_axis_than_the_channels():
    def make():
        x = to_first(placeholder("x", LAST))
        tf.identity(to_last(norm("instance", x, last=True)[0]), name="y")

    check_unchanged(trace(make), ["y"], "other_channel_axis")


def test_both_layouts_at_once():
    """x and T(x) meet in one sum: no layout suits both."""
    shape = (2, 4, 4, 4)

    def make():
        x = placeholder("x", shape)
        z = norm("layer", to_last(x))[0]
        tf.identity(tf.nn.relu(to_first(z) + z), name="y")

    check_unchanged(trace(make), ["y"], "mixed_layouts")


def test_transpose_that_waits_for_something_stays():
    def make():
        x = placeholder("x", FIRST)
        with tf.control_dependencies([placeholder("signal", [])]):
            there = tf.transpose(x, [0, 2, 3, 1])
        y = norm("instance", there)[0]
        with tf.control_dependencies([y]):
            tf.identity(tf.transpose(y, [0, 3, 1, 2]), name="y")

    graph = trace(make)
    rewritten, _ = nv_norms_rewriter.rewrite(graph, fetches=["y"])
    waiting = {n.name for n in rewritten.node if "^signal" in n.input}
    assert len([n for n in rewritten.node if n.op == "Transpose" and n.input[1] in waiting]) == 1


def _order_behind_a_node(updated: tf.Operation) -> tf.Tensor:
    with tf.control_dependencies([updated]):
        ready = tf.identity(1.0)
    with tf.control_dependencies([ready]):
        return tf.constant([0, 2, 3, 1])


def _order_of_an_order(updated: tf.Operation) -> tf.Tensor:
    with tf.control_dependencies([updated]):
        order = tf.constant([0, 3, 1, 2])
    return tf.math.invert_permutation(order)


def _order_of_parts(updated: tf.Operation) -> tf.Tensor:
    with tf.control_dependencies([updated]):
        first = tf.constant([0, 2])
    return tf.concat([first, [3, 1]], 0)


@pytest.mark.parametrize("order", [_order_behind_a_node, _order_of_an_order, _order_of_parts])
def test_transpose_whose_order_waits_for_an_assignment_stays(order):
    """Nothing else leads to the assignment: it would be gone with the Transpose."""

    def make():
        x = placeholder("x", FIRST)
        variable = v1.get_variable("v", (), initializer=v1.zeros_initializer(), use_resource=True)
        updated = tf.raw_ops.AssignAddVariableOp(resource=variable.handle, value=tf.constant(1.0))
        y = norm("instance", tf.transpose(x, order(updated)))[0]
        tf.identity(to_first(y), name="y")

    rewritten, _ = nv_norms_rewriter.rewrite(trace(make), fetches=["y"])
    assert "AssignAddVariableOp" in ops_behind(rewritten, ["y"])


def test_who_waited_for_a_transpose_waits_for_what_it_read(rng):
    def make():
        x = placeholder("x", FIRST)
        there = to_last(tf.identity(x, name="before"))
        y = norm("instance", there)[0]
        with tf.control_dependencies([there]):
            tf.constant(7.0, name="late")
        tf.identity(to_first(y), name="y")

    x = rng.normal(size=FIRST).astype(np.float32)
    expected = {"y": oracle("instance", x, last=False), "late": np.float32(7)}
    after = check(trace(make), {"x": x}, expected, before=2, after=0)
    (late,) = (node for node in after.node if node.name == "late")
    assert list(late.input) in (["^before"], ["^x"])


def test_other_device_is_a_border(rng):
    """What runs elsewhere keeps its layout, and its Transpose."""

    def make():
        x = placeholder("x", FIRST)
        with tf.device("/device:CPU:1"):
            there = to_last(x)
        with tf.device("/device:CPU:0"):
            y = tf.nn.relu(norm("instance", there)[0])
            tf.identity(to_first(y), name="y")

    check_unchanged(trace(make), ["y"])


@pytest.mark.parametrize("device", ["CPU", "GPU"])
def test_other_device_types_are_left_alone(device):
    """What the plugin of one device type does to a graph on another."""
    graph = between_transposes(lambda x: norm("instance", x)[0])
    for node in graph.node:
        node.device = "/job:localhost/replica:0/task:0/device:GPU:0"
    rewritten, _ = nv_norms_rewriter.rewrite(graph, device=device, fetches=["y"])
    assert transposes(rewritten) == 0
    assert {n.device for n in rewritten.node} == {graph.node[0].device}


def test_reader_that_needs_its_layout_keeps_it(rng):
    """A Reshape reads the elements in their order: its layout cannot change, but one Transpose may
    go. The reader gets the values that it got."""

    def make():
        y = norm("instance", to_last(placeholder("x", FIRST)))[0]
        tf.identity(tf.reshape(y, [2, -1]), name="flat")
        tf.identity(to_first(y), name="y")
        tf.identity(to_first(tf.nn.relu(y)), name="z")

    x = rng.normal(size=FIRST).astype(np.float32)
    y = oracle("instance", x, last=False)
    expected = {"flat": y.transpose(0, 2, 3, 1).reshape(2, -1), "y": y, "z": np.maximum(y, 0)}
    check(trace(make), {"x": x}, expected, before=3, after=1)


def test_without_a_norm_nothing_happens():
    graph = between_transposes(tf.nn.relu)
    check_unchanged(graph, ["y"])


def test_names_of_what_stays_are_kept(rng):
    graph = between_transposes(lambda x: tf.nn.relu(norm("instance", x, name="norm")[0], "relu"))
    rewritten, _ = nv_norms_rewriter.rewrite(graph, fetches=["y"])
    assert {"x", "norm", "relu", "y"} <= {node.name for node in rewritten.node}
    x = rng.normal(size=FIRST).astype(np.float32)
    (got,) = run(rewritten, {"x": x}, ["y"])
    expected = np.maximum(oracle("instance", x, last=False), 0)
    np.testing.assert_allclose(got, expected, 2e-5, 2e-5)
