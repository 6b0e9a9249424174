"""What hangs on the nodes of a norm: control edges, ports, colocation, devices, fetches."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from recognizer_graphs import (
    check,
    fused_nodes,
    layer_norm,
    moments,
    node,
    placeholder,
    run,
    trace,
    v1,
)

import oracle
from nv_norms_rewriter import rewrite


def _x(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(1.0, 2.0, shape).astype(np.float32)


def _ancestors(graph: v1.GraphDef, name: str) -> set[str]:
    nodes = {n.name: n for n in graph.node}
    seen: set[str] = set()
    stack = [name]
    while stack:
        for edge in nodes[stack.pop()].input:
            source = edge.lstrip("^").split(":")[0]
            if source not in seen:
                seen.add(source)
                stack.append(source)
    return seen


@pytest.mark.parametrize("where", ["mean", "xhat", "y"])
def test_what_the_norm_waits_for(rng, where: str) -> None:
    def make() -> None:
        x = placeholder("x", (None, 8))
        tf.raw_ops.Assert(condition=tf.reduce_all(x < 1e9), data=[x], name="wait")
        mean, variance = moments(x)
        tf.multiply(x - mean, tf.math.rsqrt(variance + 1e-3), name="xhat")
        g = tf.constant(np.ones(8, np.float32))
        tf.multiply(v1.get_default_graph().get_tensor_by_name("xhat:0"), g, name="y")

    graph = trace(make)
    node(graph, where).input.append("^wait")
    x = _x(rng, 3, 8)
    after, _ = check(graph, {"x": x}, oracle.layer_norm(x, epsilon=1e-3).y, 1)
    assert "wait" in _ancestors(after, "y")
    with pytest.raises(tf.errors.InvalidArgumentError, match="assertion failed"):
        run(after, {"x": x + np.float32(2e9)})


@pytest.mark.parametrize("where", ["mean", "xhat", "y"])
def test_what_waits_for_the_norm_waits_for_its_input(rng, where: str) -> None:
    def make() -> None:
        with tf.control_dependencies([tf.no_op(name="first")]):
            x = tf.identity(placeholder("x", (None, 8)))
        mean, variance = moments(x)
        tf.multiply(x - mean, tf.math.rsqrt(variance + 1e-3), name="xhat")
        tf.identity(v1.get_default_graph().get_tensor_by_name("xhat:0"), name="y")
        tf.no_op(name="after")

    graph = trace(make)
    node(graph, "after").input.append("^" + where)
    x = _x(rng, 3, 8)
    after, _ = check(
        graph, {"x": x}, oracle.layer_norm(x, epsilon=1e-3).y, 1, fetches=["y", "after"]
    )
    assert {"x", "first"} <= _ancestors(after, "after")


def test_input_from_a_second_port(rng) -> None:
    def make() -> None:
        _, x = tf.split(placeholder("x", (None, 16)), 2, -1)
        tf.identity(layer_norm(x), name="y")

    x = _x(rng, 3, 16)
    after, (record,) = check(trace(make), {"x": x}, oracle.layer_norm(x[:, 8:], epsilon=1e-3).y, 1)
    assert fused_nodes(after)[0].input[0] == "split:1" == record.inputs[0]


def test_moments_of_one_port_and_values_of_another(rng) -> None:
    def make() -> None:
        a, b = tf.split(placeholder("x", (None, 16)), 2, -1)
        mean, variance = moments(a)
        tf.multiply(b - mean, tf.math.rsqrt(variance + 1e-3), name="y")

    x = _x(rng, 3, 16)
    a, b = np.split(x.astype(np.float64), 2, -1)
    forward = oracle.layer_norm(a, epsilon=1e-3)
    check(trace(make), {"x": x}, (b - forward.mean) * forward.rstd, 0)


def test_other_outputs_of_a_batch_norm_are_still_those(rng) -> None:
    """tf_keras spells layer norm over FusedBatchNormV3; its batch variance is read here."""

    def make() -> None:
        x = placeholder("x", (4, 8))
        rows = tf.transpose(x)
        norm = tf.raw_ops.FusedBatchNormV3(
            x=tf.reshape(rows, [1, 8, 1, 4]),
            scale=tf.ones((4,)),
            offset=tf.zeros((4,)),
            mean=tf.zeros((0,)),
            variance=tf.zeros((0,)),
            epsilon=1e-3,
            is_training=True,
        )
        xhat = tf.transpose(tf.reshape(norm.y, [8, 4]))
        tf.add(xhat, norm.batch_mean[:, None], name="y")

    x = _x(rng, 4, 8)
    forward = oracle.layer_norm(x, epsilon=1e-3)
    graph = trace(make)
    after, _ = rewrite(graph, fetches=["y"])
    for each in (graph, after):
        np.testing.assert_allclose(run(each, {"x": x}), forward.y + forward.mean, 1e-4, 1e-4)


def test_inner_values_that_are_fetched(rng) -> None:
    def make() -> None:
        x = placeholder("x", (None, 8))
        mean, variance = moments(x)
        tf.identity(variance, name="variance")
        xhat = tf.multiply(x - mean, tf.math.rsqrt(variance + 1e-3), name="xhat")
        tf.add(xhat * tf.range(1.0, 9.0), 1.0, name="y")

    x = _x(rng, 3, 8)
    fetches = ["mean", "variance", "xhat", "y"]
    graph = trace(make)
    after, report = rewrite(graph, fetches=fetches)
    assert len(report.fused) >= 1
    forward = oracle.layer_norm(x, epsilon=1e-3)
    expected = [
        forward.mean,
        x.astype(np.float64).var(-1, keepdims=True),
        forward.y,
        forward.y * np.arange(1, 9) + 1,
    ]
    for got, want in zip(run(after, {"x": x}, [f"{f}:0" for f in fetches]), expected, strict=True):
        np.testing.assert_allclose(got, want, 1e-5, 1e-5)


def test_colocation_with_what_stays_is_kept_and_with_what_goes_is_dropped(rng) -> None:
    def make() -> None:
        x = placeholder("x", (None, 8))
        mean, variance = moments(x)
        tf.multiply(x - mean, tf.math.rsqrt(variance + 1e-3), name="y")
        tf.identity(x, name="beside")

    graph = trace(make)
    node(graph, "y").attr["_class"].list.s.extend([b"loc:@x", b"loc:@mean"])
    node(graph, "beside").attr["_class"].list.s.append(b"loc:@mean")
    x = _x(rng, 3, 8)
    after, _ = check(
        graph, {"x": x}, oracle.layer_norm(x, epsilon=1e-3).y, 1, fetches=["y", "beside"]
    )
    assert list(node(after, "y").attr["_class"].list.s) == [b"loc:@x"]
    assert "_class" not in node(after, "beside").attr


def _placed(devices: dict[str, str]) -> v1.GraphDef:
    def make() -> None:
        x = placeholder("x", (None, 8))
        mean, variance = moments(x)
        tf.subtract(x, mean, name="centred")
        centred = v1.get_default_graph().get_tensor_by_name("centred:0")
        g = tf.identity(tf.range(1.0, 9.0), name="g")
        tf.multiply(centred * tf.math.rsqrt(variance + 1e-3), g, name="y")

    graph = trace(make)
    for each in graph.node:
        each.device = devices.get(each.name, "/device:CPU:0")
    return graph


@pytest.mark.parametrize("elsewhere", ["centred", "mean"])
def test_parts_on_another_device_are_left(rng, elsewhere: str) -> None:
    x = _x(rng, 3, 8)
    expected = oracle.layer_norm(x, np.arange(1, 9), epsilon=1e-3).y
    _, records = check(_placed({elsewhere: "/device:CPU:1"}), {"x": x}, expected, 0, cpus=2)
    assert [r.reason for r in records] == ["other_device"]


@pytest.mark.parametrize(
    "elsewhere,left",
    [
        # What a model's first norm gets from an iterator on the host.
        ("x", []),
        ("dy", []),
        ("dgamma", ["backward"]),
        ("nothing", []),
    ],
)
def test_gradient_of_the_first_norm_of_a_model(rng, elsewhere: str, left: list[str]) -> None:
    """x is not differentiated; what is only read may be anywhere."""

    def make() -> None:
        x, dy = placeholder("x", (None, 8)), placeholder("dy", (None, 8))
        gamma, beta = placeholder("gamma", (8,)), placeholder("beta", (8,))
        y = tf.identity(layer_norm(x, gamma=gamma, beta=beta), name="y")
        for name, gradient in zip("bc", tf.gradients(y, [gamma, beta], dy), strict=True):
            tf.identity(gradient, name=name)

    graph = v1.graph_util.extract_sub_graph(trace(make), ["y", "b", "c"])
    moved = {elsewhere}
    if elsewhere == "dgamma":
        moved = {each.name for each in graph.node if "mul_1_grad" in each.name}
        assert moved
    for each in graph.node:
        each.device = f"/device:CPU:{int(each.name in moved)}"
    after, report = rewrite(graph, fetches=["y", "b", "c"])
    assert [(r.direction, r.reason) for r in report.refused] == [
        (direction, "other_device") for direction in left
    ]
    fused = [record.direction for record in report.fused]
    assert fused == [d for d in ("forward", "backward") if d not in left]
    values = {"gamma": rng.uniform(0.5, 2, 8), "beta": rng.normal(size=8)}
    values |= {"x": rng.normal(size=(3, 8)), "dy": rng.normal(size=(3, 8))}
    values = {name: value.astype(np.float32) for name, value in values.items()}
    y = oracle.layer_norm(values["x"], values["gamma"], values["beta"], epsilon=1e-3).y
    given = (values[name] for name in ("dy", "x", "gamma"))
    _, dgamma, dbeta = oracle.backward(*given, (-1,), (-1,), 1e-3)
    for each in (graph, after):
        got = run(each, values, ["y:0", "b:0", "c:0"], cpus=2)
        for one, want in zip(got, (y, dgamma, dbeta), strict=True):
            np.testing.assert_allclose(one, want, 5e-5, 5e-5)


@pytest.mark.parametrize("elsewhere", ["x", "g"])
def test_what_is_read_may_live_on_another_device(rng, elsewhere: str) -> None:
    x = _x(rng, 3, 8)
    expected = oracle.layer_norm(x, np.arange(1, 9), epsilon=1e-3).y
    after, _ = check(_placed({elsewhere: "/device:CPU:1"}), {"x": x}, expected, 1, cpus=2)
    assert fused_nodes(after)[0].device == "/device:CPU:0"


def test_nodes_without_a_device_stay_without_one(rng) -> None:
    """The device argument is an assumption, not an order; nodes made by the edit have none too."""

    def make() -> None:
        x, z = placeholder("x", (None, 8)), placeholder("z", (None, 8))
        mean, variance = moments(x)
        rstd = tf.math.rsqrt(variance + 1e-3)
        tf.subtract(x * rstd + z, mean * rstd, name="y")

    x, z = _x(rng, 3, 8), _x(rng, 3, 8)
    expected = oracle.layer_norm(x, epsilon=1e-3).y + z
    after, _ = check(trace(make), {"x": x, "z": z}, expected, 1, device="CPU")
    assert {n.device for n in after.node} == {""}


def test_one_graph_with_norms_on_two_devices(rng) -> None:
    def make() -> None:
        x = placeholder("x", (None, 8))
        with tf.device("/device:CPU:0"):
            a = layer_norm(x)
        with tf.device("/device:CPU:1"):
            b = layer_norm(tf.identity(x), -1, 0.5)
        tf.add(a, b, name="y")

    x = _x(rng, 3, 8)
    expected = oracle.layer_norm(x, epsilon=1e-3).y + oracle.layer_norm(x, epsilon=0.5).y
    after, _ = check(trace(make), {"x": x}, expected, 2, cpus=2)
    assert {n.device for n in fused_nodes(after)} == {"/device:CPU:0", "/device:CPU:1"}


@pytest.mark.parametrize("fed", ["mean:0", "variance:0", "epsilon:0", "y:0"])
def test_session_that_feeds_an_inner_tensor(rng, fed: str) -> None:
    """The plugin itself: what is fed is not what the graph computes."""
    import nv_norms_rewriter

    with tf.Graph().as_default() as graph:
        x = placeholder("x", (3, 8))
        mean = tf.reduce_mean(x, -1, keepdims=True, name="mean")
        variance = tf.reduce_mean(
            tf.math.squared_difference(x, mean), -1, keepdims=True, name="variance"
        )
        epsilon = tf.constant(1e-3, name="epsilon")
        y = tf.multiply(x - mean, tf.math.rsqrt(variance + epsilon), name="y")
        tf.nn.relu(y, name="z")
    values = {"x:0": _x(rng, 3, 8)}
    shape = {"epsilon:0": (), "y:0": (3, 8)}.get(fed, (3, 1))
    values[fed] = rng.uniform(1.0, 2.0, shape).astype(np.float32)
    nv_norms_rewriter.enable()
    with v1.Session(graph=graph) as session:
        got = session.run("z:0", values)
    a = values["x:0"].astype(np.float64)
    mean = values.get("mean:0", a.mean(-1, keepdims=True))
    variance = values.get("variance:0", ((a - mean) ** 2).mean(-1, keepdims=True))
    expected = (a - mean) / np.sqrt(variance + values.get("epsilon:0", 1e-3))
    np.testing.assert_allclose(got, np.maximum(values.get("y:0", expected), 0), 2e-5, 2e-5)


def test_norms_that_keep_their_means_in_a_deep_net_with_gradients() -> None:
    """x / sqrt(variance + epsilon) * gamma, as Keras' rms_scaling has it: ten in a row."""

    def norm(x: tf.Tensor, gamma: tf.Tensor) -> tf.Tensor:
        _, variance = moments(x)
        return x * tf.math.rsqrt(variance + 1e-3) * gamma

    def make() -> None:
        x, gamma = placeholder("x", (4, 6, 16)), placeholder("g", (16,))
        z = x
        for _ in range(9):
            z = z + tf.sin(norm(z, gamma))
        y = tf.identity(norm(z, gamma), name="y")
        dx, dgamma = tf.gradients(tf.reduce_sum(tf.sin(y)), [x, gamma])
        tf.identity(dx, name="dx")
        tf.identity(dgamma, name="dgamma")

    _, report = rewrite(trace(make), fetches=["y", "dx", "dgamma"])
    assert report.counts == {"layer_norm forward": 10, "layer_norm backward": 10}
