"""Functions that are differentiated from several places: by threads, in turn, in other graphs."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf
from training_steps import normal

import nv_norms_rewriter
import oracle


def test_threads_that_differentiate_a_function_at_once(rng) -> None:
    """The first rewrites its graph; the others wait for that."""
    x, w = (tf.constant(normal(rng, 2, 16, 32)) for _ in range(2))

    def layer_norm(x):
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        return (x - mean) * tf.math.rsqrt(variance + 1e-3)

    def gradient(function):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return tape.gradient(y, x, w).numpy()

    threads = 8
    expected = oracle.backward(w, x, None, (2,), (2,), 1e-3).dx
    for _ in range(10):
        function = tf.function(layer_norm)
        function.get_concrete_function(x)
        ready = threading.Barrier(threads)

        def one(function=function, ready=ready):
            ready.wait()
            return gradient(function)

        with ThreadPoolExecutor(threads) as pool:
            results = [pool.submit(one) for _ in range(threads)]
            for result in results:
                np.testing.assert_allclose(result.result(), expected, 1e-5, 1e-5)


def test_function_that_names_the_device_of_its_ops(rng) -> None:
    """Its results, which are given back by ops of no device, need not be on that one."""
    x, w = (tf.constant(normal(rng, 2, 16, 32)) for _ in range(2))

    @tf.function
    def layer_norm(x):
        with tf.device("/job:localhost/replica:0/task:0/device:CPU:0"):
            mean, variance = tf.nn.moments(x, [-1], keepdims=True)
            return (x - mean) * tf.math.rsqrt(variance + 1e-3)

    nv_norms_rewriter.clear_report()
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer_norm(x)
    dx = tape.gradient(y, x, w)
    report = nv_norms_rewriter.report()
    assert report.counts == {"layer_norm forward": 1, "layer_norm backward": 1}
    expected = oracle.backward(w, x, None, (2,), (2,), 1e-3).dx
    np.testing.assert_allclose(dx, expected, 1e-5, 1e-5)


@pytest.mark.parametrize("order", ["inside outside inside", "forward inside outside inside"])
def test_function_that_is_differentiated_inside_another_and_outside_in_turn(rng, order) -> None:
    """What was made of a function for one tape still serves when another has come by."""
    epsilon, shape = 1e-3, (4, 16)
    x, dy = (rng.normal(1.0, 2.0, shape).astype(np.float32) for _ in range(2))
    between = oracle.layer_norm(x, epsilon=epsilon).y * 2 + 1
    behind = oracle.backward(dy, between, None, (1,), (1,), epsilon).dx
    exact = oracle.backward(2 * behind, x, None, (1,), (1,), epsilon).dx

    def one(x: tf.Tensor) -> tf.Tensor:
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        return (x - mean) * tf.math.rsqrt(variance + epsilon)

    function = tf.function(lambda x: one(one(x) * 2 + 1), autograph=False)

    def outside(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return tape.gradient(y, x, tf.constant(dy, tf.float32))

    def forward(x: tf.Tensor) -> tf.Tensor:
        with tf.autodiff.ForwardAccumulator(x, x) as accumulator:
            y = function(x)
        assert accumulator.jvp(y) is not None
        return outside(x)

    given = tf.constant(x, tf.float32)
    ways = {
        "inside": lambda: tf.function(outside, autograph=False)(given),
        "outside": lambda: outside(given),
        "forward": lambda: forward(given),
    }
    for way in order.split():
        np.testing.assert_allclose(ways[way](), exact, 1e-4, 1e-4 * np.abs(exact).max())


@pytest.mark.parametrize("jit", [False, True], ids=["ordinary", "compiled"])
@pytest.mark.parametrize("around", ["cond", "while", "recompute"])
def test_gradient_of_a_body_beside_an_op_of_another_graph(rng, around: str, jit: bool) -> None:
    """tf.gradients has the ops of a custom gradient beside others, bodies within it likewise."""
    epsilon, shape = 1e-3, (4, 16)
    x, dy = (rng.normal(1.0, 2.0, shape).astype(np.float32) for _ in range(2))
    exact = oracle.backward(dy, x, None, (1,), (1,), epsilon).dx

    def norm(x: tf.Tensor) -> tf.Tensor:
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        return (x - mean) * tf.math.rsqrt(variance + epsilon)

    def body(x: tf.Tensor) -> tf.Tensor:
        if around == "while":
            ends = {"maximum_iterations": 1}
            return tf.while_loop(lambda i, x: i < 1, lambda i, x: (i + 1, norm(x)), [0, x], **ends)[
                1
            ]
        return tf.cond(tf.reduce_sum(x) > -1e9, lambda: norm(x), lambda: tf.tanh(x))

    @tf.function(jit_compile=jit, autograph=False)
    def step(x: tf.Tensor) -> tf.Tensor:
        if around == "recompute":
            return tf.gradients(tf.recompute_grad(body)(x), [x], [tf.constant(dy)])[0]
        with tf.GradientTape() as tape:
            tape.watch(x)
            with tf.compat.v1.colocate_with(tf.identity(x).op):
                y = body(x)
        return tape.gradient(y, x, tf.constant(dy))

    nv_norms_rewriter.configure(xla="all")
    try:
        dx = step(tf.constant(x))
    finally:
        nv_norms_rewriter.configure(xla="auto")
    np.testing.assert_allclose(dx, exact, 1e-4, 1e-4 * np.abs(exact).max())
