"""A LeakyRelu or Relu behind a fused norm goes into it: names, inputs, values against float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from activations_graphs import (
    FETCHES,
    FIRST,
    KINDS,
    SHAPE,
    C,
    activation,
    activation_grad,
    activations,
    check_close,
    draw,
    fused,
    make_step,
    oracle,
    placeholder,
    rewritten,
    run,
    slopes,
    v1,
)

import nv_norms_rewriter
from fused_graphs import EPSILON, norm, norm_grad, trace

SLOPES = [0.0, 0.01, 0.3, -0.5, 1.5]


def node(graph: v1.GraphDef, name: str) -> v1.NodeDef:
    (found,) = [n for n in graph.node if n.name == name]
    return found


@pytest.mark.parametrize("last", [True, False], ids=["last", "first"])
@pytest.mark.parametrize("slope", SLOPES)
@pytest.mark.parametrize("kind", KINDS)
def test_step(kind, slope, last, rng):
    graph = trace(lambda: make_step(kind, slope, last=last))
    after = rewritten(graph, FETCHES)
    assert activations(graph) == ["a", "dy"] and activations(after) == []
    assert {n.name for n in graph.node} - {n.name for n in after.node} == {"norm", "dy"}
    assert slopes(after) == pytest.approx([slope, slope])
    forward, backward = fused(after)
    assert (forward.name, list(forward.input)) == ("a", ["x", "gamma", "beta"])
    assert backward.name == "grad"
    assert list(backward.input) == ["da", "x", "gamma", "beta", "a:1", "a:2"]
    feeds = draw(rng, SHAPE if last else FIRST)
    check_close(graph, after, feeds, oracle(kind, feeds, slope, last))


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float64], ids=lambda t: t.name)
@pytest.mark.parametrize("slope", [0.0, 0.2])
@pytest.mark.parametrize("kind", KINDS)
def test_types(kind, slope, dtype, rng):
    graph = trace(lambda: make_step(kind, slope, dtype=dtype))
    after = rewritten(graph, FETCHES)
    assert activations(after) == []
    feeds = draw(rng, dtype=dtype.as_numpy_dtype)
    tolerance = {tf.float16: 2e-3, tf.bfloat16: 1.6e-2, tf.float64: 1e-12}[dtype]
    # Where y rounds to 0 in half, its sign is lost before, but not after.
    check_close(graph, after, feeds, oracle(kind, feeds, float(np.float32(slope))), tolerance)


@pytest.mark.parametrize("slope", [0.0, 0.2])
@pytest.mark.parametrize("shape", [None, (None, None, None, C), (3, 4, 5, None)])
def test_unknown_sizes(shape, slope, rng):
    def make():
        make_step("instance", slope, shape=tf.TensorShape(shape))

    graph = trace(make)
    after = rewritten(graph, FETCHES)
    assert activations(after) == []
    feeds = draw(rng)
    check_close(graph, after, feeds, oracle("instance", feeds, slope))


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("offset", [True, False])
@pytest.mark.parametrize("slope", [0.0, 0.2])
def test_without_parameters(slope, offset, scale, rng):
    graph = trace(lambda: make_step("group", slope, scale=scale, offset=offset))
    after = rewritten(graph, FETCHES)
    assert slopes(after) == pytest.approx([slope] * 2)
    given = ["gamma"] * scale + ["beta"] * offset
    assert list(fused(after)[1].input) == ["da", "x", *given, "a:1", "a:2"]
    assert fused(after)[1].attr["num_offset"].i == offset
    feeds = draw(rng)
    for name, wanted in (("gamma", scale), ("beta", offset)):
        if not wanted:
            del feeds[name]
    check_close(graph, after, feeds, oracle("group", feeds, slope))


@pytest.mark.parametrize("fetched", ["a", "next"])
@pytest.mark.parametrize("slope", [0.0, 0.1])
@pytest.mark.parametrize("kind", KINDS)
def test_forward_alone(kind, slope, fetched, rng):
    def make():
        y = norm(kind, placeholder("x"), placeholder("gamma", [C]), placeholder("beta", [C]))[0]
        tf.tanh(activation(y, slope, name="a"), name="next")

    graph = trace(make)
    after = rewritten(graph, [fetched])
    assert activations(after) == [] and len(after.node) == len(graph.node) - 1
    feeds = draw(rng)
    a = oracle(kind, feeds, slope)["a"]
    check_close(graph, after, feeds, {fetched: a if fetched == "a" else np.tanh(a)})


def test_relus_gradient_by_its_input(rng):
    def backward(da, y, a, slope, name):
        return tf.raw_ops.ReluGrad(gradients=da, features=y, name=name)

    graph = trace(lambda: make_step("instance", 0.0, backward=backward))
    after = rewritten(graph, FETCHES)
    assert activations(after) == []
    feeds = draw(rng)
    check_close(graph, after, feeds, oracle("instance", feeds, 0.0))


def _make_losses(slope: float) -> None:
    x, gamma = placeholder("x"), placeholder("gamma", [C])
    y, *statistics = norm("instance", x, gamma, placeholder("beta", [C]), name="norm")
    a = activation(y, slope, name="a")
    for i in range(2):
        dy = activation_grad(placeholder(f"da{i}"), y, a, slope)
        dx, dgamma, _ = norm_grad("instance", dy, x, gamma, statistics)
        tf.identity(dx, name=f"dx{i}")
        tf.identity(dgamma, name=f"dgamma{i}")


@pytest.mark.parametrize("slope", [0.0, 0.2])
def test_gradients_of_two_losses(slope, rng):
    graph = trace(lambda: _make_losses(slope))
    names = [f"{name}{i}" for i in range(2) for name in ("dx", "dgamma")]
    after = rewritten(graph, ["a", *names])
    assert activations(after) == [] and slopes(after) == pytest.approx([slope] * 3)
    feeds = draw(rng)
    feeds |= {"da0": feeds["da"], "da1": rng.normal(size=SHAPE).astype(np.float32)}
    expected = {"a": oracle("instance", feeds, slope)["a"]}
    for i in range(2):
        values = oracle("instance", feeds | {"da": feeds[f"da{i}"]}, slope)
        expected |= {f"{name}{i}": values[name] for name in ("dx", "dgamma")}
    check_close(graph, after, feeds, expected)


@pytest.mark.parametrize("slope", [0.0, 0.2])
def test_what_reads_only_the_shape_of_y_reads_that_of_x(slope, rng):
    """x is of another type; and the shape of y is what leads to it in a graph of gradients."""

    def make():
        x = placeholder("x", [None, 4, 5, C], tf.float16)
        y = norm("instance", x, placeholder("gamma", [C]), None, out_type=tf.float32)[0]
        for name in ("shape", "size", "rank"):
            getattr(tf.raw_ops, name.capitalize())(input=y, name=name)
        activation(y, slope, name="a")

    graph = trace(make)
    after = rewritten(graph, ["a", "shape", "size", "rank"])
    assert activations(after) == []
    feeds = draw(rng, dtype=np.float16)
    shape, size, rank = run(after, feeds, ["shape", "size", "rank"])
    assert (tuple(shape), size, rank) == (SHAPE, np.prod(SHAPE), 4)
    del feeds["beta"]
    check_close(graph, after, feeds, {"a": oracle("instance", feeds, slope)["a"]})


@pytest.mark.parametrize("slope", [0.0, 0.2])
def test_identities_between(slope, rng):
    def forward(y, slope, name):
        return activation(tf.identity(tf.identity(y, name="i"), name="ii"), slope, name)

    graph = trace(lambda: make_step("instance", slope, forward=forward))
    after = rewritten(graph, FETCHES)
    assert activations(after) == []
    assert not {"norm", "i", "ii"} & {n.name for n in after.node}
    feeds = draw(rng)
    check_close(graph, after, feeds, oracle("instance", feeds, slope))


def test_one_behind_the_other(rng):
    def make():
        gamma, beta = placeholder("gamma", [C]), placeholder("beta", [C])
        x = placeholder("x")
        for i in range(3):
            x = activation(norm("instance", x, gamma, beta)[0], 0.1 * i, name=f"a{i}")
        tf.identity(x, name="a")

    graph = trace(make)
    after = rewritten(graph, ["a"])
    assert slopes(after) == pytest.approx([0.0, 0.1, 0.2]) and activations(after) == []
    feeds = draw(rng)
    x = feeds
    for i in range(3):
        x = x | {"x": oracle("instance", x, 0.1 * i)["a"]}
    check_close(graph, after, feeds, {"a": x["x"]})


def test_statistics_that_others_read(rng):
    def make():
        make_step("group", 0.2)
        graph = tf.compat.v1.get_default_graph()
        for i, name in ((1, "mean"), (2, "rstd")):
            tf.sqrt(graph.get_tensor_by_name(f"norm:{i}"), name=name)

    graph = trace(make)
    after = rewritten(graph, [*FETCHES, "mean", "rstd"])
    assert activations(after) == []
    assert list(node(after, "mean").input) == ["a:1"]
    feeds = draw(rng)
    for was, now in zip(*(run(g, feeds, ["mean", "rstd"]) for g in (graph, after)), strict=True):
        np.testing.assert_allclose(was, now, 1e-6)


def test_control_edges_are_kept():
    """What waited waits, and nothing runs that was to wait."""

    def make():
        first, second, third = (placeholder(n, []) for n in ("first", "second", "third"))

        make_step("instance", 0.2)
        graph = tf.compat.v1.get_default_graph()
        for name, control in (("norm", first), ("a", second), ("dy", third)):
            graph.get_operation_by_name(name)._add_control_input(control.op)
        for waited in ("norm", "dy", "grad"):
            with tf.control_dependencies([graph.get_operation_by_name(waited)]):
                tf.constant(1.0, name=f"behind_{waited}")

    graph = trace(make)
    behind = ["behind_norm", "behind_dy", "behind_grad"]
    after = rewritten(graph, [*FETCHES, *behind])
    assert activations(after) == []
    controls = {n.name: {i for i in n.input if i.startswith("^")} for n in after.node}
    assert controls["a"] == {"^first", "^second"}
    assert controls["grad"] == {"^third"}
    assert controls["behind_norm"] == {"^a"}
    assert controls["behind_dy"] == {"^da", "^third"}
    assert controls["behind_grad"] == {"^grad"}


@pytest.mark.parametrize("where", ["a", "y"])
@pytest.mark.parametrize("half", [tf.float16, tf.bfloat16], ids=lambda t: t.name)
def test_casts_beside_activations_are_taken_in_as_well(where, half, rng):
    """x in half, a in float32 and da from it: no kernel reads half and writes float32, so x is
    given in float32."""

    def make():
        x, da = placeholder("x"), placeholder("da")
        gamma, beta = placeholder("gamma", [C]), placeholder("beta", [C])
        x = tf.cast(x, half)
        y, *statistics = norm("instance", x, gamma, beta)
        if where == "y":
            y = tf.cast(y, tf.float32)
        a = activation(y, 0.2, name="a_inside")
        tf.cast(a, tf.float32, name="a") if where == "a" else tf.identity(a, name="a")
        dy = da if where == "y" else tf.cast(da, half)
        dy = activation_grad(dy, y, a, 0.2)
        dy = tf.cast(dy, half) if where == "y" else dy
        outputs = norm_grad("instance", dy, x, gamma, statistics)
        for name, tensor in zip(FETCHES[1:], outputs, strict=True):
            tf.identity(tf.cast(tensor, tf.float32), name=name)

    graph = trace(make)
    after = rewritten(graph, FETCHES)
    assert activations(after) == []
    assert [n.name for n in after.node if n.op == "Cast"] == []
    feeds = draw(rng)
    check_close(graph, after, feeds, oracle("instance", feeds, 0.2))


def test_device_is_the_nodes_own():
    def make():
        with tf.device("/job:localhost/replica:0/task:0/device:GPU:1"):
            make_step("instance", 0.2)

    after = rewritten(trace(make), FETCHES, device=None)
    assert slopes(after) == pytest.approx([0.2, 0.2])
    assert {n.device.rpartition("/")[2] for n in after.node} == {"device:GPU:1"}


def test_what_nobody_needs_keeps_nothing(rng):
    """Python's graphs hold gradients that were made for nothing."""

    def make():
        make_step("instance", 0.2)
        graph = tf.compat.v1.get_default_graph()
        y, dy, mean = (graph.get_tensor_by_name(n) for n in ("norm:0", "dy:0", "norm:1"))
        tf.square(dy - 2.0 * y, name="dead")
        gamma, x = (graph.get_tensor_by_name(f"{n}:0") for n in ("gamma", "x"))
        norm_grad("instance", x, x, gamma, [mean, mean], name="dead_grad")
        tf.raw_ops.LeakyReluGrad(gradients=x, features=y, alpha=0.5, name="dead_dy")
        with tf.control_dependencies([graph.get_operation_by_name("dead")]):
            tf.constant(1.0, name="dead_constant")

    graph = trace(make)
    after = rewritten(graph, FETCHES)
    assert activations(after) == [] and not [n.name for n in after.node if "dead" in n.name]
    assert [n.name for n in after.node if n.op == "Square"] == []
    feeds = draw(rng)
    check_close(graph, after, feeds, oracle("instance", feeds, 0.2))
    live = rewritten(graph, [*FETCHES, "dead"])
    assert activations(live) != []


def _formula(x, gamma, beta, slope: float):
    mean, variance = tf.nn.moments(x, [1, 2], keepdims=True)
    y = (x - mean) * tf.math.rsqrt(variance + EPSILON) * gamma + beta
    return activation(y, slope, name="a")


@pytest.mark.parametrize("slope", [0.0, 0.2])
@pytest.mark.parametrize("train", [True, False], ids=["train", "infer"])
def test_norm_that_is_found_in_single_ops(slope, train, rng):
    def make():
        x, da = placeholder("x"), placeholder("da")
        gamma, beta = placeholder("gamma", [C]), placeholder("beta", [C])
        a = _formula(x, gamma, beta, slope)
        if train:
            gradients = tf.gradients(a, [x, gamma, beta], grad_ys=[da])
            for name, tensor in zip(FETCHES[1:], gradients, strict=True):
                tf.identity(tensor, name=name)

    graph = trace(make)
    fetches = FETCHES if train else ["a"]
    after, report = nv_norms_rewriter.rewrite(graph, device="GPU", fetches=fetches)
    assert rewritten(graph, fetches) == after
    assert activations(after) == []
    assert slopes(after) == pytest.approx([slope] * (1 + train))
    assert [(r.kind, r.direction, r.fused) for r in report] == [
        ("instance_norm", direction, True) for direction in ("forward", "backward")[: 1 + train]
    ]
    assert [r.negative_slope for r in report] == pytest.approx([slope] * (1 + train))
    assert report[0].outputs == ("a:0",) and report[0].inputs[0] == "x:0"
    if train:
        assert report[1].inputs[:2] == ("gradients/grad_ys_0:0", "x:0")
    words = "with relu" if slope == 0 else "with leaky_relu(0.2)"
    assert words in " ".join(str(report).split())
    feeds = draw(rng)
    expected = oracle("instance", feeds, slope)
    check_close(graph, after, feeds, {name: expected[name] for name in fetches})


def test_norm_in_a_function(rng):
    """Its nodes say where they run."""

    @tf.function(autograph=False)
    def function(x, gamma, beta):
        with tf.device("/device:GPU:0"):
            return _formula(x, gamma, beta, 0.2)

    def make():
        given = [placeholder("x"), placeholder("gamma", [C]), placeholder("beta", [C])]
        tf.identity(function(*given), name="a")

    graph = trace(make)
    after, _ = nv_norms_rewriter.rewrite(graph, fetches=["a"])
    (body,) = after.library.function
    ops = [n.op for n in body.node_def]
    assert "FusedInstanceNorm" in ops and "LeakyRelu" not in ops
    for n in body.node_def:
        n.device = ""
    feeds = draw(rng)
    np.testing.assert_allclose(
        run(after, feeds, ["a"])[0], oracle("instance", feeds, 0.2)["a"], 1e-4, 1e-5
    )


@pytest.mark.parametrize("slope", [0.0, 0.2])
def test_values_that_are_no_numbers(slope, rng):
    graph = trace(lambda: make_step("instance", slope))
    after = rewritten(graph, FETCHES)
    feeds = draw(rng)
    feeds["x"][0, 1, 2, 3] = np.nan
    feeds["x"][1, 1, 2, 4] = np.inf
    feeds["beta"][5] = -np.inf if slope == 0 else np.inf
    for name, was, now in zip(
        FETCHES, *(run(g, feeds, FETCHES) for g in (graph, after)), strict=True
    ):
        np.testing.assert_array_equal(np.isnan(was), np.isnan(now), err_msg=name)
        np.testing.assert_allclose(was, now, 1e-4, 1e-4, err_msg=name)


def _around(graph: v1.GraphDef, before: Callable, behind: Callable, shape, dtype) -> v1.GraphDef:
    """The graph with something before x and da, and something behind a and dx."""

    def make():
        names = {n.name for n in graph.node}
        given = {n: before(placeholder(n, shape, dtype)) for n in ("x", "da") if n in names}
        inner = [f"{n}:0" for n in FETCHES]
        a, dx, *rest = tf.import_graph_def(graph, given, inner, name="inner")
        for name, tensor in zip(FETCHES, [behind(a), behind(dx), *rest], strict=True):
            tf.identity(tensor, name=name)

    made = trace(make)
    for node in made.node:  # what is fed has its own name
        for i, name in enumerate(node.input):
            if name in ("inner/gamma", "inner/beta"):
                node.input[i] = name.removeprefix("inner/")
        node.name = {"inner/gamma": "gamma", "inner/beta": "beta"}.get(node.name, node.name)
    return made


def _to_last(x):
    return tf.transpose(x, [0, 2, 3, 1])


def _to_first(x):
    return tf.transpose(x, [0, 3, 1, 2])


@pytest.mark.parametrize("taken_in", [True, False], ids=["taken in before", "beside"])
@pytest.mark.parametrize("slope", [0.0, 0.2])
@pytest.mark.parametrize("kind", KINDS)
def test_layouts_change_with_the_activation(kind, slope, taken_in, rng):
    inner = trace(lambda: make_step(kind, slope))
    inner = rewritten(inner, FETCHES) if taken_in else inner
    graph = _around(inner, _to_last, _to_first, FIRST, tf.float32)
    after = rewritten(graph, FETCHES)
    assert [n.name for n in after.node if n.op == "Transpose"] == []
    assert {n.attr["data_format"].s for n in fused(after)} == {b"NC..."}
    assert slopes(after) == pytest.approx([slope, slope]) and activations(after) == []
    feeds = draw(rng, FIRST)
    check_close(graph, after, feeds, oracle(kind, feeds, slope, last=False))


@pytest.mark.parametrize("taken_in", [True, False], ids=["taken in before", "beside"])
@pytest.mark.parametrize("half", [tf.float16, tf.bfloat16], ids=lambda t: t.name)
@pytest.mark.parametrize("kind", KINDS)
def test_casts_go_in_with_the_activation(kind, half, taken_in, rng):
    inner = trace(lambda: make_step(kind, 0.2, dtype=half))
    inner = rewritten(inner, FETCHES) if taken_in else inner
    graph = _around(
        inner,
        lambda x: tf.cast(x, half),
        lambda y: tf.cast(y, tf.float32),
        SHAPE,
        tf.float32,
    )
    after = rewritten(graph, FETCHES)
    assert [n.name for n in after.node if n.op == "Cast"] == []
    assert slopes(after) == pytest.approx([0.2, 0.2]) and activations(after) == []
    feeds = draw(rng)
    check_close(graph, after, feeds, oracle(kind, feeds, 0.2))
