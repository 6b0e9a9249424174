"""Norms inside the branches and loops of v1 control flow, where a dead tensor must stay dead."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from recognizer_graphs import check, layer_norm, moments, placeholder, trace

import oracle

v1 = tf.compat.v1


@pytest.mark.parametrize("taken", [True, False])
@pytest.mark.parametrize("gamma_inside", [True, False])
def test_norm_in_a_branch(rng, old_control_flow, taken: bool, gamma_inside: bool) -> None:
    gamma = rng.uniform(0.5, 2, 8).astype(np.float32)

    def make() -> None:
        x, p = placeholder("x", (None, 8)), placeholder("p", (), tf.bool)
        outside = tf.constant(gamma)

        def norm() -> tf.Tensor:
            return layer_norm(x, gamma=tf.constant(gamma) if gamma_inside else outside)

        tf.identity(v1.cond(p, norm, lambda: tf.exp(x)), name="y")

    x = rng.normal(size=(3, 8)).astype(np.float32)
    expected = oracle.layer_norm(x, gamma, epsilon=1e-3).y if taken else np.exp(x)
    graph = trace(make)
    assert "Switch" in {n.op for n in graph.node}
    check(graph, {"x": x, "p": taken}, expected, 1)


@pytest.mark.parametrize("taken", [True, False])
def test_norms_in_both_branches(rng, old_control_flow, taken: bool) -> None:
    def make() -> None:
        x, p = placeholder("x", (None, 8)), placeholder("p", (), tf.bool)
        y = v1.cond(p, lambda: layer_norm(x, -1, 1e-3), lambda: layer_norm(x, -1, 0.5))
        tf.identity(y, name="y")

    x = rng.normal(size=(3, 8)).astype(np.float32)
    check(
        trace(make),
        {"x": x, "p": taken},
        oracle.layer_norm(x, epsilon=1e-3 if taken else 0.5).y,
        2,
    )


@pytest.mark.parametrize("taken", [True, False])
def test_branch_that_only_gamma_comes_through(rng, taken: bool) -> None:
    gamma = rng.uniform(0.5, 2, 8).astype(np.float32)

    def make() -> None:
        x, p = placeholder("x", (None, 8)), placeholder("p", (), tf.bool)
        no, yes = tf.raw_ops.Switch(data=tf.constant(gamma), pred=p)
        y, _ = tf.raw_ops.Merge(inputs=[layer_norm(x, gamma=yes), layer_norm(x) - no])
        tf.identity(y, name="y")

    x = rng.normal(size=(3, 8)).astype(np.float32)
    xhat = oracle.layer_norm(x, epsilon=1e-3).y
    check(trace(make), {"x": x, "p": taken}, xhat * gamma if taken else xhat - gamma, 2)


@pytest.mark.parametrize("constant", ["epsilon", "axes"])
@pytest.mark.parametrize("taken", [True, False])
def test_branch_that_only_a_constant_belongs_to(rng, constant: str, taken: bool) -> None:
    def make() -> None:
        x, p = placeholder("x", (None, 8)), placeholder("p", (), tf.bool)
        _, yes = tf.raw_ops.Switch(data=p, pred=p)
        axes, epsilon = tf.constant([-1]), tf.constant(1e-3)
        with tf.control_dependencies([tf.identity(yes)]):
            if constant == "epsilon":
                epsilon = tf.constant(1e-3)
            else:
                axes = tf.constant([-1])
        mean, variance = moments(x, axes)
        norm = (x - mean) * tf.math.rsqrt(variance + epsilon)
        no, _ = tf.raw_ops.Switch(data=x, pred=p)
        tf.identity(tf.raw_ops.Merge(inputs=[tf.exp(no), norm])[0], name="y")

    x = rng.normal(size=(3, 8)).astype(np.float32)
    expected = oracle.layer_norm(x, epsilon=1e-3).y if taken else np.exp(x)
    check(trace(make), {"x": x, "p": taken}, expected, 1)


@pytest.mark.parametrize("parallel", [1, 10])
def test_norm_in_a_loop(rng, old_control_flow, parallel: int) -> None:
    gamma, beta = rng.uniform(0.5, 2, (2, 8)).astype(np.float32)

    def make() -> None:
        x = placeholder("x", (None, 8))
        g, b = tf.constant(gamma), tf.constant(beta)
        _, y = v1.while_loop(
            lambda i, h: i < 3,
            lambda i, h: (i + 1, h + layer_norm(h, gamma=g, beta=b)),
            [0, x],
            parallel_iterations=parallel,
        )
        tf.identity(y, name="y")

    expected = x = rng.normal(size=(3, 8)).astype(np.float32)
    for _ in range(3):
        expected = expected + oracle.layer_norm(expected, gamma, beta, epsilon=1e-3).y
    graph = trace(make)
    assert "NextIteration" in {n.op for n in graph.node}
    check(graph, {"x": x}, expected, 1)


def test_group_norm_in_a_loop(rng, old_control_flow) -> None:
    """The shapes of its reshapes belong to the loop's frame."""

    def make() -> None:
        x = placeholder("x", (None, 6, 8))

        def body(i, h):
            y = layer_norm(tf.reshape(h, [-1, 6, 4, 2]), [1, 3])
            return i + 1, tf.ensure_shape(tf.reshape(y, tf.shape(h)) + h, (None, 6, 8))

        tf.identity(v1.while_loop(lambda i, h: i < 3, body, [0, x])[1], name="y")

    expected = x = rng.normal(size=(3, 6, 8)).astype(np.float32)
    for _ in range(3):
        expected = expected + oracle.group_norm(expected, groups=4, epsilon=1e-3).y
    check(trace(make), {"x": x}, expected, 1)


def test_norm_of_what_no_iteration_changes(rng, old_control_flow) -> None:
    def make() -> None:
        x = placeholder("x", (None, 8))
        start = tf.zeros_like(x)
        _, y = v1.while_loop(
            lambda i, h: i < 3, lambda i, h: (i + 1, h + layer_norm(x)), [0, start]
        )
        tf.identity(y, name="y")

    x = rng.normal(size=(3, 8)).astype(np.float32)
    check(trace(make), {"x": x}, 3 * oracle.layer_norm(x, epsilon=1e-3).y, 1)


def test_moments_from_outside_of_the_loop(rng, old_control_flow) -> None:
    """mean and rstd enter the loop, xhat is computed in it: no one place for a fused op."""

    def make() -> None:
        x = placeholder("x", (None, 8))
        mean, variance = moments(x)
        rstd = tf.math.rsqrt(variance + 1e-3)
        _, y = v1.while_loop(
            lambda i, h: i < 3,
            lambda i, h: (i + 1, h + (x - mean) * rstd),
            [0, tf.zeros_like(x)],
        )
        tf.identity(y, name="y")

    x = rng.normal(size=(3, 8)).astype(np.float32)
    check(trace(make), {"x": x}, 3 * oracle.layer_norm(x, epsilon=1e-3).y, 0)
