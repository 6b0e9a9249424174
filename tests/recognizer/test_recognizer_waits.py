"""What a norm's small operands wait for: an assertion, or the branch that is taken."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from recognizer_graphs import fused_nodes, layer_norm, moments, placeholder, run, trace, v1

import oracle
from nv_norms_rewriter import rewrite

SHAPE = (4, 6)


def _gamma() -> tf.Tensor:
    return v1.placeholder_with_default(np.linspace(0.5, 2, 6, dtype=np.float32), (6,))


# What waits, and the norm of it.
OPERANDS = {
    "epsilon behind an Identity": (
        lambda: tf.identity(tf.constant(1e-3)),
        lambda x, epsilon: layer_norm(x, epsilon=epsilon),
    ),
    "epsilon that is a product": (
        lambda: tf.constant(1e-3) * tf.constant(1.0),
        lambda x, epsilon: layer_norm(x, epsilon=epsilon),
    ),
    "axes behind an Identity": (
        lambda: tf.identity(tf.constant([-1])),
        lambda x, axes: layer_norm(x, axis=axes),
    ),
    "shape of gamma's Reshape": (
        lambda: tf.constant([1, 6]),
        lambda x, shape: layer_norm(x, gamma=tf.reshape(_gamma(), shape)),
    ),
    "axis of gamma's ExpandDims": (
        lambda: tf.constant(0),
        lambda x, axis: layer_norm(x, gamma=tf.expand_dims(_gamma(), axis)),
    ),
}


@pytest.mark.parametrize("operand", OPERANDS)
def test_an_assertion_is_still_made(rng, operand: str) -> None:
    make_waiting, norm = OPERANDS[operand]

    def make() -> None:
        x, ok = placeholder("x", SHAPE), placeholder("ok", (), tf.bool)
        with tf.control_dependencies([v1.Assert(ok, ["not ok"])]):
            waiting = make_waiting()
        tf.identity(norm(x, waiting), name="y")

    graph = trace(make)
    after, report = rewrite(graph, fetches=["y"])
    assert len(report.fused) == 1
    x = rng.normal(size=SHAPE).astype(np.float32)
    np.testing.assert_allclose(
        run(graph, {"x": x, "ok": True}), run(after, {"x": x, "ok": True}), 2e-5, 2e-5
    )
    for each in (graph, after):
        with pytest.raises(tf.errors.InvalidArgumentError, match="not ok"):
            run(each, {"x": x, "ok": False})


@pytest.mark.parametrize("waiting", ["dgamma", "dbeta", "dx"])
def test_a_gradient_still_waits_for_an_assertion_about_another(rng, waiting: str) -> None:
    def make() -> None:
        x, dy, gamma = placeholder("x", SHAPE), placeholder("dy", SHAPE), placeholder("g", (6,))
        mean, variance = moments(x)
        rstd = tf.math.rsqrt(variance + 1e-3)
        xhat = (x - mean) * rstd
        tf.identity(xhat * gamma + placeholder("b", (6,)), name="y")
        w = dy * gamma
        terms = [tf.reduce_mean(each, [-1], keepdims=True) for each in (w, w * xhat)]
        gradients = {
            "dx": lambda: rstd * (w - terms[0] - xhat * terms[1]),
            "dgamma": lambda: tf.reduce_sum(dy * xhat, 0),
            "dbeta": lambda: tf.reduce_sum(dy, 0),
        }
        last = gradients.pop(waiting)
        bound = placeholder("bound", ())
        few = [
            tf.reduce_all(tf.abs(tf.identity(gradient(), name)) < bound)
            for name, gradient in gradients.items()
        ]
        with tf.control_dependencies([v1.Assert(tf.reduce_all(few), ["too large"])]):
            tf.identity(last(), name=waiting)

    graph = trace(make)
    after, report = rewrite(graph, fetches=["y", "dx", "dgamma", "dbeta"])
    assert [len(r.outputs) for r in report.fused if r.direction == "backward"] == [3]
    feeds = {name: rng.normal(size=SHAPE).astype(np.float32) for name in ("x", "dy")}
    feeds |= {name: rng.uniform(0.5, 2.0, 6).astype(np.float32) for name in "gb"}
    wanted = f"{waiting}:0"
    want = run(graph, feeds | {"bound": 1e6}, wanted)
    np.testing.assert_allclose(run(after, feeds | {"bound": 1e6}, wanted), want, 2e-5, 2e-5)
    for each in (graph, after):
        with pytest.raises(tf.errors.InvalidArgumentError, match="too large"):
            run(each, feeds | {"bound": 1e-6}, wanted)


def test_an_assertion_before_a_gradient_is_still_made(rng) -> None:
    def make() -> None:
        x, dy, gamma = placeholder("x", SHAPE), placeholder("dy", SHAPE), placeholder("g", (6,))
        mean, variance = moments(x)
        rstd = tf.math.rsqrt(variance + 1e-3)
        xhat = (x - mean) * rstd
        tf.identity(xhat * gamma, name="y")
        with tf.control_dependencies([v1.Assert(placeholder("ok", (), tf.bool), ["not ok"])]):
            axis = tf.identity(tf.constant([-1]))
        w = dy * gamma
        terms = [tf.reduce_mean(each, axis, keepdims=True) for each in (w, w * xhat)]
        tf.identity(rstd * (w - terms[0] - xhat * terms[1]), name="dx")

    graph = trace(make)
    after, report = rewrite(graph, fetches=["y", "dx"])
    assert [record.direction for record in report.fused] == ["forward", "backward"]
    feeds = {name: rng.normal(size=SHAPE).astype(np.float32) for name in ("x", "dy")}
    feeds["g"] = rng.uniform(0.5, 2, 6).astype(np.float32)
    feeds["ok"] = True
    np.testing.assert_allclose(run(graph, feeds, "dx:0"), run(after, feeds, "dx:0"), 2e-4, 2e-5)
    feeds["ok"] = False
    with pytest.raises(tf.errors.InvalidArgumentError, match="not ok"):
        run(after, feeds, "dx:0")


@pytest.mark.parametrize("taken", [True, False])
@pytest.mark.parametrize("operand", ["epsilon behind an Identity", "shape of gamma's Reshape"])
def test_a_branch_that_only_such_an_operand_belongs_to(rng, operand: str, taken: bool) -> None:
    make_waiting, norm = OPERANDS[operand]

    def make() -> None:
        x, which = placeholder("x", SHAPE), placeholder("p", (), tf.bool)
        _, pivot = tf.raw_ops.Switch(data=which, pred=which)
        with tf.control_dependencies([tf.identity(pivot)]):
            waiting = make_waiting()
        other, _ = tf.raw_ops.Switch(data=tf.fill(SHAPE, 7.0), pred=which)
        # Late: a norm that is computed in either case would be merged first.
        for _ in range(200):
            other = tf.nn.relu(other)
        merged, _ = tf.raw_ops.Merge(inputs=[norm(x, waiting), other])
        tf.identity(merged, name="y")

    graph = trace(make)
    after, _ = rewrite(graph, fetches=["y"])
    assert len(fused_nodes(after)) == 1
    x = rng.normal(size=SHAPE).astype(np.float32)
    gamma = 1.0 if "epsilon" in operand else np.linspace(0.5, 2, 6)
    expected = oracle.layer_norm(x, gamma * np.ones(6), epsilon=1e-3).y if taken else 7.0
    got = run(after, {"x": x, "p": taken})
    np.testing.assert_allclose(got, np.broadcast_to(expected, SHAPE), 2e-5, 2e-5)
