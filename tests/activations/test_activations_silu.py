"""A silu behind a fused norm, which is several ops, goes into it."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf
from activations_graphs import (
    FETCHES,
    FIRST,
    KINDS,
    SHAPE,
    C,
    check_close,
    draw,
    fused,
    make_step,
    oracle,
    placeholder,
    rewritten,
    v1,
)
from keras_step import KerasStep
from silu_graphs import (
    left,
    made,
    other_grad,
    parameters,
    silu,
    silu_grad,
    silus,
    step,
    traced_silu,
    traced_silu_grad,
)

from fused_graphs import norm, norm_grad, trace


@pytest.mark.parametrize("last", [True, False], ids=["last", "first"])
@pytest.mark.parametrize(
    ("forward", "backward"),
    [(silu, silu_grad), (traced_silu, traced_silu_grad), (silu, other_grad)],
)
@pytest.mark.parametrize("kind", KINDS)
def test_step(kind: str, forward: Callable, backward: Callable, last: bool, rng) -> None:
    graph = step(kind, forward, backward, last=last)
    after = rewritten(graph, FETCHES)
    assert left(after) == [] and silus(after) == [True, True]
    one, two = fused(after)
    assert (one.name, list(one.input)) == ("a", ["x", "gamma", "beta"])
    assert list(two.input)[:6] == ["da", "x", "gamma", "beta", "a:1", "a:2"]
    feeds = draw(rng, SHAPE if last else FIRST)
    check_close(graph, after, feeds, oracle(kind, feeds, "silu", last))


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float64], ids=lambda t: t.name)
@pytest.mark.parametrize("kind", KINDS)
def test_types(kind: str, dtype: tf.DType, rng) -> None:
    graph = step(kind, dtype=dtype)
    after = rewritten(graph, FETCHES)
    assert silus(after) == [True, True]
    feeds = draw(rng, dtype=dtype.as_numpy_dtype)
    tolerance = {tf.float16: 2e-3, tf.bfloat16: 1.6e-2, tf.float64: 1e-12}[dtype]
    check_close(graph, after, feeds, oracle(kind, feeds, "silu"), tolerance)


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("offset", [True, False])
def test_without_parameters(offset: bool, scale: bool, rng) -> None:
    graph = step("group", scale=scale, offset=offset)
    after = rewritten(graph, FETCHES)
    assert silus(after) == [True, True]
    assert fused(after)[1].attr["num_offset"].i == offset
    feeds = draw(rng)
    for name, wanted in (("gamma", scale), ("beta", offset)):
        if not wanted:
            del feeds[name]
    check_close(graph, after, feeds, oracle("group", feeds, "silu"))


@pytest.mark.parametrize("shape", [(None, None, None, C), (3, 4, 5, None), (None, 4, 5, C)])
def test_unknown_sizes(shape: tuple, rng) -> None:
    graph = step(shape=tf.TensorShape(shape))
    after = rewritten(graph, FETCHES)
    assert silus(after) == [True, True]
    feeds = draw(rng)
    check_close(graph, after, feeds, oracle("instance", feeds, "silu"))


@pytest.mark.parametrize("kind", KINDS)
def test_forward_alone(kind: str, rng) -> None:
    def make() -> None:
        y = norm(kind, placeholder("x"), *parameters(), name="norm")[0]
        # What follows is a function of y alone, too.
        tf.raw_ops.Mul(x=silu(tf.identity(y), name="a"), y=2.0, name="twice")

    graph = trace(make)
    after = rewritten(graph, ["twice"])
    assert silus(after) == [True] and left(after) == ["twice"]
    feeds = draw(rng)
    check_close(graph, after, feeds, {"twice": 2.0 * oracle(kind, feeds, "silu")["a"]})


def test_a_shared_sigmoid(rng) -> None:
    sigmoids = []

    def forward(y, slope, name):
        sigmoids.append(tf.sigmoid(y))
        return tf.raw_ops.Mul(x=y, y=sigmoids[-1], name=name)

    def backward(da, y, a, slope, name):
        s = sigmoids[-1]
        return tf.raw_ops.Mul(x=da, y=s * (1.0 + y * (1.0 - s)), name=name)

    graph = step(forward=forward, backward=backward)
    after = rewritten(graph, FETCHES)
    assert left(after) == [] and silus(after) == [True, True]
    feeds = draw(rng)
    check_close(graph, after, feeds, oracle("instance", feeds, "silu"))


def test_two_losses(rng) -> None:
    def make() -> None:
        x, (gamma, beta) = placeholder("x"), parameters()
        y, *statistics = norm("instance", x, gamma, beta, name="norm")
        silu(y, name="a")
        for i in range(2):
            dy = silu_grad(placeholder(f"da{i}"), y)
            dx, dgamma, _ = norm_grad("instance", dy, x, gamma, statistics)
            tf.identity(dx, name=f"dx{i}")
            tf.identity(dgamma, name=f"dgamma{i}")

    graph = trace(make)
    fetches = ["a", *(f"{name}{i}" for i in range(2) for name in ("dx", "dgamma"))]
    after = rewritten(graph, fetches)
    assert left(after) == [] and silus(after) == [True] * 3
    feeds = draw(rng)
    feeds |= {f"da{i}": rng.normal(size=SHAPE).astype(np.float32) for i in range(2)}
    for i in range(2):
        expected = oracle("instance", feeds | {"da": feeds[f"da{i}"]}, "silu")
        wanted = {f"{name}{i}": expected[name] for name in ("dx", "dgamma")}
        check_close(graph, after, feeds, wanted)


def test_a_loss_that_depends_on_the_gradient_of_another(rng) -> None:
    """Each gradient waits for what its own parts waited for: for the other's, there is a circle."""

    def make() -> None:
        x, (gamma, beta) = placeholder("x"), parameters()
        y, *statistics = norm("instance", x, gamma, beta, name="norm")
        silu(y, name="a")
        da = placeholder("da")
        for i in range(2):
            dx, _, _ = norm_grad("instance", silu_grad(da, y), x, gamma, statistics)
            da = tf.tanh(tf.identity(dx, name=f"dx{i}"))

    graph = trace(make)
    after = rewritten(graph, ["a", "dx0", "dx1"])
    assert left(after) == [] and silus(after) == [True] * 3
    feeds = draw(rng)
    first = oracle("instance", feeds, "silu")["dx"]
    second = oracle("instance", feeds | {"da": np.tanh(first)}, "silu")["dx"]
    check_close(graph, after, feeds, {"dx0": first, "dx1": second})


@pytest.mark.parametrize("taken", [True, False])
def test_beside_a_branch(taken: bool, rng) -> None:
    """As a loss scale's makes one: the gradient is computed in it, and waits for what is in it."""
    v1.disable_control_flow_v2()
    try:

        def make() -> None:
            x, p, (gamma, beta) = placeholder("x"), placeholder("p", (), tf.bool), parameters()
            y, *statistics = norm("instance", x, gamma, beta, name="norm")
            a = silu(y, name="a")
            da = v1.cond(p, lambda: tf.tanh(a), lambda: 2.0 * a)
            dx, _, _ = norm_grad("instance", silu_grad(da, y), x, gamma, statistics)
            tf.identity(dx, name="dx")

        graph = trace(make)
    finally:
        v1.enable_control_flow_v2()
    assert {"Switch", "Merge"} <= {n.op for n in graph.node}
    after = rewritten(graph, ["a", "dx"])
    assert silus(after) == [True, True]
    feeds = draw(rng) | {"p": np.bool_(taken)}
    a = oracle("instance", feeds, "silu")["a"]
    da = np.tanh(a) if taken else 2.0 * a
    expected = oracle("instance", feeds | {"da": da}, "silu")
    check_close(graph, after, feeds, {name: expected[name] for name in ("a", "dx")})


def test_who_waited_for_parts_of_it_still_waits_for_what_they_read(rng) -> None:
    """The gradient waits for what its parts waited for."""

    def make() -> None:
        make_step("instance", 0.0, forward=silu, backward=silu_grad)
        with tf.control_dependencies([made("dy:0")]):
            tf.constant(1.0, name="waits")

    graph = trace(make)
    after = {n.name: n for n in rewritten(graph, [*FETCHES, "waits"]).node}
    assert "dy" not in after
    assert "^da" in after["waits"].input and "^da" in after["grad"].input


@pytest.mark.parametrize("shape", [(), (C,), (3, 1, 5, C), (1, 4, 5, C)])
def test_a_gradient_that_is_broadcast(shape: tuple, rng) -> None:
    """da has fewer elements than y: the op wants all of dy's."""

    def backward(da, y, a, slope, name):
        return silu_grad(placeholder("small", shape), y, name=name)

    graph = step(backward=backward)
    after = rewritten(graph, FETCHES)
    assert silus(after) == [False, False]
    feeds = draw(rng)
    feeds["small"] = rng.normal(size=shape).astype(np.float32)
    expected = oracle("instance", feeds | {"da": np.broadcast_to(feeds["small"], SHAPE)}, "silu")
    check_close(graph, after, feeds, expected)


def without_identities(graph: v1.GraphDef) -> v1.GraphDef:
    """As Grappler leaves a graph: of an IdentityN its inputs are read."""
    out = v1.GraphDef()
    out.CopyFrom(graph)
    inputs = {n.name: list(n.input) for n in out.node if n.op == "IdentityN"}

    def source(name: str) -> str:
        base, _, port = name.partition(":")
        return source(inputs[base][int(port or 0)]) if base in inputs else name

    kept = [n for n in out.node if n.op != "IdentityN"]
    for node in kept:
        node.input[:] = [source(name) for name in node.input]
    del out.node[:]
    out.node.extend(kept)
    return out


@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("groups", [-1, 2])
def test_keras_model_and_its_gradients(groups: int, policy: str, rng) -> None:
    step = KerasStep(groups, lambda policy: keras.layers.Activation("silu", dtype=policy), policy)
    graph = without_identities(step.graph)
    after = rewritten(graph, step.fetches)
    assert silus(after) == [True] * 4 and not any(n.op == "Sigmoid" for n in after.node)
    was, now = step.errors(graph, after, rng)
    assert now < 1.2 * was + 1e-5
