"""Sessions of TensorFlow 1: variables that are references, fetches of any tensor, updates."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from recognizer_graphs import placeholder, v1

import nv_norms_rewriter
import oracle


@pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])
def test_variables_are_normalized_scaled_and_updated(rng, use_resource: bool) -> None:
    start = {
        name: rng.uniform(0.5, 2.0, shape).astype(np.float32)
        for name, shape in (("gamma", (8,)), ("beta", (8,)), ("w", (4, 8)))
    }
    dy = rng.normal(size=(3, 8)).astype(np.float32)
    with tf.Graph().as_default() as graph:
        x = placeholder("x", (None, 8))
        variables = {
            name: v1.get_variable(name, initializer=value, use_resource=use_resource)
            for name, value in start.items()
        }

        def norm(h):
            mean, variance = tf.nn.moments(h, [-1], keepdims=True)
            return (h - mean) * tf.math.rsqrt(variance + 1e-3)

        y = norm(2.0 * x) * variables["gamma"] + variables["beta"]
        z = norm(variables["w"])
        step = v1.train.GradientDescentOptimizer(0.1).minimize(
            tf.reduce_sum(y * dy), var_list=[variables["gamma"], variables["beta"]]
        )
        nv_norms_rewriter.enable()
        nv_norms_rewriter.clear_report()
        a = rng.normal(1.0, 2.0, (3, 8)).astype(np.float32)
        with v1.Session(graph=graph) as session:
            session.run(v1.global_variables_initializer())
            got_y, got_z, _ = session.run([y, z, step], {x: a})
            after = session.run(variables)
    forward = [r for r in nv_norms_rewriter.report() if r.direction == "forward"]
    assert sum(r.fused for r in forward) == 2, forward
    xhat = oracle.layer_norm(2.0 * a.astype(np.float64), epsilon=1e-3).y
    np.testing.assert_allclose(got_y, xhat * start["gamma"] + start["beta"], 2e-5, 2e-5)
    np.testing.assert_allclose(got_z, oracle.layer_norm(start["w"], epsilon=1e-3).y, 2e-5, 2e-5)
    np.testing.assert_allclose(
        after["gamma"], start["gamma"] - 0.1 * (dy * xhat).sum(0), 2e-5, 2e-5
    )
    np.testing.assert_allclose(after["beta"], start["beta"] - 0.1 * dy.sum(0), 2e-5, 2e-5)
    np.testing.assert_array_equal(after["w"], start["w"])


@pytest.mark.parametrize("shape", [(2, 3, 5, 4), (None, 3, 5, 4), (None, None, None, 4)])
def test_placeholder_that_is_fed_has_the_shape_that_it_says(rng, shape) -> None:
    """Without a rank no instance norm can be told; a session checks what it is fed against it."""
    gamma, beta = (rng.uniform(0.5, 2.0, 4).astype(np.float32) for _ in range(2))
    a = rng.normal(size=(2, 3, 5, 4)).astype(np.float32)
    with tf.Graph().as_default() as graph:
        x = placeholder("x", shape)
        mean, variance = tf.nn.moments(x, [1, 2], keepdims=True)
        y = (x - mean) * tf.math.rsqrt(variance + 1e-3) * gamma + beta
        nv_norms_rewriter.enable()
        nv_norms_rewriter.clear_report()
        with v1.Session(graph=graph) as session:
            got = session.run(y, {x: a})
    assert [record.kind for record in nv_norms_rewriter.report() if record.fused] == [
        "instance_norm"
    ]
    want = oracle.instance_norm(a, gamma, beta, epsilon=1e-3).y
    np.testing.assert_allclose(got, want, 2e-5, 2e-5)


@pytest.mark.parametrize("shape", [(None, None), (3, None), (None, None, None)])
def test_placeholder_that_leaves_open_whether_gamma_broadcasts_it(rng, shape) -> None:
    """As an argument of a tf.function does: fed with one column, x takes the size of gamma."""
    gamma, beta = (rng.uniform(0.5, 2.0, 8).astype(np.float32) for _ in range(2))
    dy = rng.normal(size=(*[3] * (len(shape) - 1), 8)).astype(np.float32)
    with tf.Graph().as_default() as graph:
        x = placeholder("x", shape)
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        y = (x - mean) * tf.math.rsqrt(variance + 1e-3) * gamma + beta
        (dx,) = tf.gradients(y, x, dy)
        nv_norms_rewriter.enable()
        nv_norms_rewriter.clear_report()
        with v1.Session(graph=graph) as session:
            for columns in (8, 1):
                a = rng.normal(1.0, 2.0, (*dy.shape[:-1], columns)).astype(np.float32)
                got_y, got_dx = session.run([y, dx], {x: a})
                want = oracle.layer_norm(a, epsilon=1e-3).y * gamma + beta
                np.testing.assert_allclose(got_y, want, 2e-5, 2e-5)
                assert got_dx.shape == a.shape
    # Beside a norm without parameters, which has the shape of x.
    forward = [r for r in nv_norms_rewriter.report() if r.fused and r.direction == "forward"]
    assert all(len(record.inputs) == 1 for record in forward)


@pytest.mark.parametrize("assigned", [False, True])
@pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])
def test_gamma_that_changes_between_two_reads(rng, use_resource: bool, assigned: bool) -> None:
    gamma = rng.uniform(0.5, 2.0, 6).astype(np.float32)
    a = rng.normal(1.0, 2.0, (4, 6)).astype(np.float32)
    with tf.Graph().as_default() as graph:
        x = placeholder("x", (4, 6))
        w = v1.get_variable("w", initializer=gamma, use_resource=use_resource)
        read = w.read_value if use_resource else lambda: tf.identity(w)
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        rstd = tf.math.rsqrt(variance + 1e-3)
        before = read()
        scaled = x * (rstd * before)
        with tf.control_dependencies([scaled]):
            step = v1.assign(w, w * 3.0) if assigned else tf.no_op()
        with tf.control_dependencies([step]):
            again = read() if assigned else before
        y = scaled - mean * rstd * again
        nv_norms_rewriter.enable()
        nv_norms_rewriter.clear_report()
        with v1.Session(graph=graph) as session:
            session.run(v1.global_variables_initializer())
            got = session.run(y, {x: a})
    assert len(nv_norms_rewriter.report().fused) == (0 if assigned else 1)
    wide = a.astype(np.float64)
    root = np.sqrt(wide.var(-1, keepdims=True) + 1e-3)
    second = gamma * (3.0 if assigned else 1.0)
    expected = wide / root * gamma - wide.mean(-1, keepdims=True) / root * second
    np.testing.assert_allclose(got, expected, 2e-5, 2e-5)


def test_reference_that_is_read_twice_by_itself(rng) -> None:
    """The same tensor, without an Identity: it holds what it holds when each op reads it."""
    gamma = rng.uniform(0.5, 2.0, 6).astype(np.float32)
    a = rng.normal(1.0, 2.0, (4, 6)).astype(np.float32)
    with tf.Graph().as_default() as graph:
        x = placeholder("x", (4, 6))
        w = tf.raw_ops.VariableV2(shape=(6,), dtype=tf.float32)
        start = tf.raw_ops.Assign(ref=w, value=gamma)
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        rstd = tf.math.rsqrt(variance + 1e-3)
        scaled = x * tf.raw_ops.Mul(x=rstd, y=w)
        with tf.control_dependencies([scaled]):
            step = tf.raw_ops.Assign(ref=w, value=gamma * 3.0)
        with tf.control_dependencies([step]):
            y = scaled - mean * tf.raw_ops.Mul(x=rstd, y=w)
        nv_norms_rewriter.enable()
        nv_norms_rewriter.clear_report()
        with v1.Session(graph=graph) as session:
            session.run(start)
            got = session.run(y, {x: a})
    assert not nv_norms_rewriter.report().fused
    wide = a.astype(np.float64)
    root = np.sqrt(wide.var(-1, keepdims=True) + 1e-3)
    expected = (wide - 3.0 * wide.mean(-1, keepdims=True)) / root * gamma
    np.testing.assert_allclose(got, expected, 2e-5, 2e-5)


@pytest.mark.parametrize("of", ["gamma", "x"])
def test_variable_that_is_assigned_to_before_the_output(rng, of: str) -> None:
    """The graph has read it before that; a fused op in the output's place would read it after."""
    start = {"gamma": rng.uniform(0.5, 2.0, 6), "x": rng.normal(1.0, 2.0, (4, 6))}
    start = {name: value.astype(np.float32) for name, value in start.items()}
    beta = rng.normal(size=6).astype(np.float32)
    with tf.Graph().as_default() as graph:
        v = {
            name: v1.get_variable(name, initializer=value, use_resource=False)
            for name, value in start.items()
        }
        mean, variance = tf.nn.moments(v["x"], [-1], keepdims=True)
        scaled = (v["x"] - mean) * tf.math.rsqrt(variance + 1e-3) * v["gamma"]
        with tf.control_dependencies([scaled]):
            step = v1.assign(v[of], tf.ones_like(start[of]) * 3.0)
        with tf.control_dependencies([step]):
            y = scaled + placeholder("beta", (6,))
        nv_norms_rewriter.enable()
        nv_norms_rewriter.clear_report()
        with v1.Session(graph=graph) as session:
            session.run(v1.global_variables_initializer())
            got = session.run(y, {"beta:0": beta})
    expected = oracle.layer_norm(start["x"], start["gamma"], beta, epsilon=1e-3).y
    np.testing.assert_allclose(got, expected, 2e-5, 2e-5)


def test_batch_size_is_read_beside_a_gradient(rng) -> None:
    """Grappler forgets the rank of what is fed: of an op's unknown sizes none may be another's."""
    a = rng.normal(size=(2, 4, 5, 6)).astype(np.float32)
    gamma = rng.uniform(0.5, 2.0, 6).astype(np.float32)
    config = v1.ConfigProto()
    config.graph_options.rewrite_options.min_graph_nodes = -1
    with tf.Graph().as_default() as graph:
        x = placeholder("x", (None, 4, 5, 6))
        scale = placeholder("gamma", (6,))
        mean, variance = tf.nn.moments(x, [1, 2], keepdims=True)
        y = (x - mean) * tf.math.rsqrt(variance + 1e-3) * scale
        z = tf.reshape(tf.reshape(y, [-1]) * 2.0, [-1, 4, 5, 6])
        loss = tf.reduce_sum(tf.sin(z)) / tf.cast(tf.shape(y)[0], tf.float32)
        gradient = tf.gradients(loss, x)
        nv_norms_rewriter.enable()
        nv_norms_rewriter.clear_report()
        with v1.Session(graph=graph, config=config) as session:
            got, dx = session.run([loss, *gradient], {x: a, scale: gamma})
    assert len(nv_norms_rewriter.report().fused) == 2
    norm = oracle.instance_norm(a, gamma, None, epsilon=1e-3)
    assert got == pytest.approx(np.sin(2 * norm.y).sum() / 2, rel=1e-5)
    expected = oracle.backward(np.cos(2 * norm.y), a, gamma, (1, 2), (3,), epsilon=1e-3)
    np.testing.assert_allclose(dx, expected.dx, 2e-5, 2e-5)
