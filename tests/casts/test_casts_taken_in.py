"""Casts around fused norms go into them: types, names, values against float64 NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from casts_graphs import (
    HALVES,
    KINDS,
    SHAPE,
    casts,
    check_as_close,
    draw,
    fused,
    needed,
    oracle,
    placeholder,
    rewritten,
    run,
    types,
    v1,
)

import nv_norms_rewriter
from fused_graphs import norm, trace
from fused_graphs import norm_grad as gradient

C = SHAPE[-1]
FETCHES = ["y", "dx", "dgamma", "dbeta"]


def _make_step(kind: str, half: tf.DType, y_too: bool = True, dy_too: bool = True) -> None:
    gamma, beta = placeholder("gamma", [C]), placeholder("beta", [C])
    x = tf.cast(placeholder("x"), half, name="x_cast")
    y, *statistics = norm(kind, x, gamma, beta, name="norm")
    tf.cast(y, tf.float32, name="y") if y_too else tf.identity(y, name="y")
    dy = placeholder("dy", dtype=tf.float32 if dy_too else half)
    dy = tf.cast(dy, half, name="dy_cast") if dy_too else dy
    dx, dgamma, dbeta = gradient(kind, dy, x, gamma, statistics, name="grad")
    tf.cast(dx, tf.float32, name="dx")
    tf.identity(dgamma, name="dgamma")
    tf.identity(dbeta, name="dbeta")


@pytest.mark.parametrize("device", ["CPU", "GPU", None])
@pytest.mark.parametrize("half", HALVES, ids=lambda t: t.name)
@pytest.mark.parametrize("kind", KINDS)
def test_step_in_float32_has_no_cast_left(kind, half, device, rng):
    graph = trace(lambda: _make_step(kind, half))
    after = rewritten(graph, FETCHES, device)
    assert casts(graph) == ["dx", "dy_cast", "x_cast", "y"]
    assert casts(after) == []
    assert len(after.node) == len(graph.node) - 2
    forward, backward = sorted(fused(after), key=lambda node: len(node.op))
    assert types(forward) == {"T": tf.float32, "out_type": tf.float32}
    assert set(types(backward).values()) == {tf.float32}
    feeds = draw(rng)
    expected = oracle(kind, feeds)
    check_as_close(graph, after, feeds, expected._asdict())
    for name, got in zip(FETCHES, run(after, feeds, FETCHES), strict=True):
        np.testing.assert_allclose(got, getattr(expected, name), 1e-4, 1e-4, err_msg=name)


@pytest.mark.parametrize("half", HALVES, ids=lambda t: t.name)
@pytest.mark.parametrize("kind", KINDS)
def test_y_and_dy_stay_narrow_where_others_want_them_so(kind, half, rng):
    """The step of a mixed policy that is given float32."""
    graph = trace(lambda: _make_step(kind, half, y_too=False, dy_too=False))
    after = rewritten(graph, FETCHES)
    assert casts(after) == []
    forward, backward = sorted(fused(after), key=lambda node: len(node.op))
    assert forward.name == "norm"
    assert types(forward) == {"T": tf.float32, "out_type": half}
    assert types(backward)["T"] == types(backward)["dx_type"] == tf.float32
    assert types(backward)["Y"] == half
    feeds = draw(rng)
    feeds["dy"] = tf.cast(feeds["dy"], half).numpy()
    check_as_close(graph, after, feeds, oracle(kind, feeds)._asdict())


def _make_forward(half: tf.DType, x_too: bool, y_too: bool) -> None:
    x = placeholder("x", dtype=tf.float32 if x_too else half)
    x = tf.cast(x, half) if x_too else x
    y = norm("layer", x, placeholder("gamma", [C]), placeholder("beta", [C]), name="norm")[0]
    tf.cast(y, tf.float32, name="y") if y_too else tf.identity(y, name="y")


@pytest.mark.parametrize("half", HALVES, ids=lambda t: t.name)
@pytest.mark.parametrize("device", ["CPU", "GPU"])
@pytest.mark.parametrize(
    ("x_too", "y_too"), [(True, True), (True, False), (False, True)], ids=["x and y", "x", "y"]
)
def test_forward_alone(x_too, y_too, device, half, rng):
    graph = trace(lambda: _make_forward(half, x_too, y_too))
    after = rewritten(graph, ["y"], device)
    feeds = draw(rng)
    if not x_too:
        feeds["x"] = tf.cast(feeds["x"], half).numpy()
    if not x_too and device == "GPU":
        assert after == graph  # no CUDA kernel is made for x in half and y in float32
        return
    assert casts(after) == []
    (node,) = fused(after)
    x_type, y_type = (tf.float32 if too else half for too in (x_too, y_too))
    assert types(node) == {"T": x_type, "out_type": y_type}
    check_as_close(graph, after, feeds, {"y": oracle("layer", feeds).y})


def test_gradients_of_narrow_parameters_come_in_float32(rng):
    half = tf.float16
    feeds = draw(rng)
    for key, value in feeds.items():
        feeds[key] = value.astype(np.float16)

    def make():
        x, dy = placeholder("x", dtype=half), placeholder("dy", dtype=half)
        gamma, beta = (placeholder(name, [C], half) for name in ("gamma", "beta"))
        y, *statistics = norm("layer", x, gamma, beta)
        tf.identity(y, name="y")
        dx, dgamma, dbeta = gradient("layer", dy, x, gamma, statistics, param_type=half)
        tf.identity(dx, name="dx")
        tf.cast(dgamma, tf.float32, name="dgamma")
        tf.cast(tf.reshape(dbeta, tf.shape(beta)), tf.float32, name="dbeta")

    graph = trace(make)
    after = rewritten(graph, FETCHES)
    assert casts(after) == []
    (backward,) = (node for node in fused(after) if node.op.endswith("Grad"))
    assert types(backward) == {
        "T": half, "Y": half, "dx_type": half, "param_type": tf.float32
    }  # fmt: skip
    check_as_close(graph, after, feeds, oracle("layer", feeds)._asdict())


def test_gradient_of_one_parameter_alone_stays(rng):
    """They are of one type."""
    half = tf.float16

    def make():
        x, dy = placeholder("x", dtype=half), placeholder("dy", dtype=half)
        gamma, beta = (placeholder(name, [C], half) for name in ("gamma", "beta"))
        _, *statistics = norm("layer", x, gamma, beta)
        _, dgamma, dbeta = gradient("layer", dy, x, gamma, statistics, param_type=half)
        tf.cast(dgamma, tf.float32, name="dgamma")
        tf.identity(dbeta, name="dbeta")

    graph = trace(make)
    assert rewritten(graph, ["dgamma", "dbeta"]) == graph


def test_views_and_shapes_on_the_way_come_along(rng):
    """x32 -> Cast -> Reshape -> norm -> Identity -> Reshape -> Cast, and a Shape of both halves."""

    def make():
        gamma, beta = placeholder("gamma", [C]), placeholder("beta", [C])
        half = tf.cast(placeholder("x"), tf.float16, name="x_cast")
        rows = tf.reshape(half, [-1, C], name="rows")
        y = norm("layer", rows, gamma, beta, name="norm")[0]
        y = tf.identity(y, name="same")
        y = tf.reshape(y, tf.shape(half, name="sizes"), name="back")
        tf.shape(y, name="out_sizes")
        tf.cast(y, tf.float32, name="y")

    graph = trace(make)
    after = rewritten(graph, ["y", "out_sizes"])
    assert casts(after) == []
    names = {node.name for node in after.node}
    assert names.isdisjoint({"rows", "same", "back", "norm", "x_cast"})
    feeds = draw(rng)
    check_as_close(graph, after, feeds, {"y": oracle("layer", feeds).y})
    assert list(run(after, feeds, ["out_sizes"])[0]) == list(SHAPE)


def test_norms_of_one_tensor_share_the_wide_one(rng):
    """Two forwards read 4 + 4 bytes an element, with the Cast 4 + 2 + 2 + 2."""

    def make(count: int) -> None:
        gamma, beta = placeholder("gamma", [C]), placeholder("beta", [C])
        x = tf.cast(placeholder("x"), tf.float16)
        for i in range(count):
            tf.identity(norm("layer", x, gamma, beta)[0], name=f"y{i}")

    for count, left in ((2, 0), (3, 1)):
        graph = trace(lambda count=count: make(count))
        fetches = [f"y{i}" for i in range(count)]
        after = rewritten(graph, fetches)
        assert len(casts(after)) == left
        feeds = draw(rng)
        check_as_close(graph, after, feeds, dict.fromkeys(fetches, oracle("layer", feeds).y))


def test_chain_of_norms_stays_in_float32_between(rng):
    """norm -> Cast -> Cast -> norm: what the first writes in float32 is what the second reads."""

    def make():
        gamma, beta = placeholder("gamma", [C]), placeholder("beta", [C])
        x = tf.cast(placeholder("x"), tf.float16)
        y = tf.cast(norm("layer", x, gamma, beta)[0], tf.float32)
        z = norm("layer", tf.cast(y, tf.float16), gamma, beta)[0]
        tf.cast(z, tf.float32, name="z")

    graph = trace(make)
    after = rewritten(graph, ["z"])
    assert casts(after) == []
    feeds = draw(rng)
    first = oracle("layer", feeds).y
    check_as_close(graph, after, feeds, {"z": oracle("layer", {**feeds, "x": first}).y})


def test_who_waits_for_what_goes_waits_for_what_comes(rng):
    """The op with an effect that waits for the Cast of x and for the norm still runs after both."""

    def make():
        variable = v1.get_variable("v", [], initializer=v1.zeros_initializer(), use_resource=True)
        x = tf.cast(placeholder("x"), tf.float16, name="x_cast")
        y = norm("layer", x, placeholder("gamma", [C]), placeholder("beta", [C]), name="norm")[0]
        with tf.control_dependencies([x.op, y.op]):
            variable.assign_add(1.0, read_value=False, name="add")
        tf.cast(y, tf.float32, name="y")

    graph = trace(make)
    after = rewritten(graph, ["y", "add"])
    assert casts(after) == []
    (node,) = fused(after)
    (added,) = (n for n in after.node if n.name == "Const")  # what is added waits for both
    assert set(added.input) == {f"^{node.name}", "^x"}
    feeds = draw(rng)
    check_as_close(graph, after, feeds, {"y": oracle("layer", feeds).y})


def test_what_the_second_cast_waits_for_is_still_waited_for():
    def make():
        x = tf.cast(placeholder("x"), tf.float16)
        y = norm("layer", x, placeholder("gamma", [C]), placeholder("beta", [C]))[0]
        with tf.control_dependencies([placeholder("first", [])]):
            tf.cast(y, tf.float32, name="y")

    after = rewritten(trace(make), ["y"])
    (y,) = (node for node in after.node if node.name == "y")
    assert y.op == "Identity" and "^first" in y.input


def test_branches_of_a_condition(rng):
    """In the branch that is taken, with x from a Switch and y to a Merge."""

    def make():
        gamma, beta = placeholder("gamma", [C]), placeholder("beta", [C])
        taken, x = placeholder("taken", [], tf.bool), placeholder("x")
        otherwise, branch = v1.raw_ops.Switch(data=x, pred=taken)
        y = norm("layer", tf.cast(branch, tf.float16), gamma, beta)[0]
        merged, _ = v1.raw_ops.Merge(inputs=[tf.cast(y, tf.float32), otherwise])
        tf.identity(merged, name="y")

    graph = trace(make)
    after = rewritten(graph, ["y"])
    assert casts(after) == []
    feeds = draw(rng)
    for taken, expected in ((True, oracle("layer", feeds).y), (False, feeds["x"])):
        given = {**feeds, "taken": np.array(taken)}
        check_as_close(graph, after, given, {"y": expected})


def test_bodies_of_functions_and_loops(rng):
    feeds = draw(rng)

    @tf.function(autograph=False)
    def loop(x, gamma, beta):
        def body(i, value):
            y = norm("layer", tf.cast(value, tf.float16), gamma, beta)[0]
            return i + 1, tf.cast(y, tf.float32)

        return tf.while_loop(lambda i, _: i < 3, body, (0, x))[1]

    arguments = [tf.constant(feeds[key]) for key in ("x", "gamma", "beta")]
    with nv_norms_rewriter.disabled():
        concrete = loop.get_concrete_function(*arguments)
        stock = concrete(*arguments).numpy()
    after, _ = nv_norms_rewriter.rewrite(concrete.graph.as_graph_def(), device="GPU")
    bodies = [f for f in after.library.function if any("Fused" in n.op for n in f.node_def)]
    assert bodies
    for function in bodies:
        assert not [node.name for node in function.node_def if node.op == "Cast"]
    x = feeds["x"].astype(np.float64)
    for _ in range(3):
        x = oracle("layer", {**feeds, "x": x}).y
    nv_norms_rewriter.enable()
    fresh = tf.function(loop.python_function, autograph=False)
    got = fresh(*arguments).numpy()
    assert np.abs(got - x).max() <= np.abs(stock - x).max()
    assert np.abs(got - x).max() < 1e-5


def test_casts_between_transposes_and_a_norm_go_after_the_transposes(rng):
    """x32 first -> Cast -> T -> norm last -> T -> Cast: no Transpose, no Cast."""
    to_last, to_first = [0, 2, 3, 1], [0, 3, 1, 2]

    def make():
        gamma, beta = placeholder("gamma", [C]), placeholder("beta", [C])
        x = tf.cast(placeholder("x", (3, C, 4, 5)), tf.float16)
        y = norm("instance", tf.transpose(x, to_last), gamma, beta)[0]
        tf.cast(tf.transpose(y, to_first), tf.float32, name="y")

    graph = trace(make)
    after, report = nv_norms_rewriter.rewrite(graph, device="GPU", fetches=["y"])
    assert [record.kind for record in report] == ["layout"]
    assert not [node.name for node in after.node if node.op in ("Transpose", "Cast")]
    again, _ = nv_norms_rewriter.rewrite(after, device="GPU", fetches=["y"])
    assert again == after
    feeds = draw(rng)
    y = oracle("instance", feeds).y.transpose(to_first)
    feeds["x"] = feeds["x"].transpose(to_first)
    check_as_close(graph, after, feeds, {"y": y})


def test_found_norms_take_in_casts_too(rng):
    """Written out in float32 between Casts of a policy, gradient included; counted once each."""
    half = tf.float16

    def make():
        gamma, beta = placeholder("gamma", [C]), placeholder("beta", [C])
        wide = placeholder("x")
        x = tf.cast(tf.cast(wide, half), tf.float32)
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        y = tf.cast(tf.nn.batch_normalization(x, mean, variance, beta, gamma, 1e-3), half)
        y = tf.cast(y, tf.float32, name="y")
        dx, dgamma, dbeta = tf.gradients(y, [wide, gamma, beta], placeholder("dy"))
        for name, value in (("dx", dx), ("dgamma", dgamma), ("dbeta", dbeta)):
            tf.identity(value, name=name)

    graph = trace(make)
    after, report = nv_norms_rewriter.rewrite(graph, device="GPU", fetches=FETCHES)
    assert [record.direction for record in report.fused] == ["forward", "backward"]
    assert set(casts(after)).isdisjoint(needed(after, FETCHES))  # the rest nobody computes
    for node in fused(after):
        assert set(types(node).values()) == {tf.float32}
    again, _ = nv_norms_rewriter.rewrite(after, device="GPU", fetches=FETCHES)
    assert again == after
    feeds = draw(rng)
    check_as_close(graph, after, feeds, oracle("layer", feeds)._asdict())


def test_numbers_beyond_half_stay_finite(rng):
    """70000 is infinite in half, and its norm no number; in float32 it is one."""
    graph = trace(lambda: _make_forward(tf.float16, True, True))
    after = rewritten(graph, ["y"])
    feeds = draw(rng)
    feeds["x"] *= np.float32(70000.0)
    (stock,), (got,) = (run(each, feeds, ["y"]) for each in (graph, after))
    assert np.isnan(stock).any()
    np.testing.assert_allclose(got, oracle("layer", feeds).y, 1e-4, 1e-4)
