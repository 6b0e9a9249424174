"""Norms in loops and branches: their gradients are loops and branches of their own."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from training_norms import EPSILON, FOUR, LAYER, RMS, TF_KERAS_LAYER, Norm
from training_steps import (
    assert_as_close_as_stock,
    assert_counts,
    check,
    counts,
    left,
    normal,
    run_both,
    spec,
    step_of,
)
from training_traces import optimized

import nv_norms_rewriter

NORMS = pytest.mark.parametrize("norm", FOUR, ids=lambda norm: norm.name)
STEPS = 3
ROOTS = {"Rsqrt", "RsqrtGrad", "Sqrt", "SqrtGrad", "FusedBatchNormV3", "FusedBatchNormGradV3"}


def _exact(norm: Norm, x, dy, values):
    """x -> tanh(norm(x)), STEPS times."""
    states = [np.float64(x)]
    for _ in range(STEPS):
        states.append(np.tanh(norm.forward(states[-1], values)))
    gradient, total = np.float64(dy), [0.0] * len(values)
    for state in reversed(states[:-1]):
        dinner = gradient * (1 - np.tanh(norm.forward(state, values)) ** 2)
        gradient, *parameters = norm.backward(dinner, state, values)
        total = [t + p for t, p in zip(total, parameters, strict=True)]
    return [states[-1], gradient, *total]


def _check(rng, norm: Norm, loop, count: int, known: str = "static") -> None:
    """loop(body, x) runs the body STEPS times; the norm stands in the graph `count` times."""
    x, dy, values, layer, variables = norm.draw(rng)

    def function(x):
        return loop(lambda value: tf.tanh(layer(value)), x)

    make = step_of(function, variables, x, dy, known)
    stock, fused, report = run_both(make, [x, dy])
    assert_as_close_as_stock(stock, fused, _exact(norm, x, dy, values), units=64)
    assert_counts(report, {norm.kind: count}, {norm.kind: count})
    # Nothing of the norm is left beside the fused ops.
    graph = optimized(make().get_concrete_function(), [x, dy])
    assert not {node.op for node in graph.node} & ROOTS


def _while(body, x):
    return tf.while_loop(
        lambda i, _: i < STEPS,
        lambda i, value: (i + 1, body(value)),
        (0, x),
        shape_invariants=(tf.TensorShape([]), x.shape),
    )[1]


def _scan(body, x):
    return tf.scan(lambda value, _: body(value), tf.range(STEPS), initializer=x)[-1]


def _conditions(body, x):
    for _ in range(STEPS):
        x = tf.cond(tf.reduce_sum(x) < 1e6, lambda x=x: body(x), lambda x=x: x)
    return x


def _cases(body, x):
    for step in range(STEPS):
        index = tf.cast(tf.reduce_sum(x) > 1e6, tf.int32) + step
        branches = [lambda x=x: body(x)] * STEPS + [lambda x=x: x]
        x = tf.switch_case(index, branches)
    return x


def _condition_in_a_loop(body, x):
    return _while(lambda v: tf.cond(tf.reduce_sum(v) < 1e6, lambda: body(v), lambda: v), x)


def _loop_in_a_condition(body, x):
    return tf.cond(tf.reduce_sum(x) < 1e6, lambda: _while(body, x), lambda: x)


def _loop_in_a_loop(body, x):
    def once(x):
        return tf.while_loop(lambda i, _: i < 1, lambda i, v: (i + 1, body(v)), (0, x))[1]

    return _while(once, x)


def _function_in_a_loop(body, x):
    inner = tf.function(body, autograph=False)
    return _while(lambda value: inner(value), x)


@pytest.mark.sampled(2)
@NORMS
def test_unrolled(rng, norm: Norm) -> None:
    def loop(body, x):
        for _ in range(STEPS):
            x = body(x)
        return x

    _check(rng, norm, loop, STEPS)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("norm", [*FOUR, TF_KERAS_LAYER], ids=lambda norm: norm.name)
@pytest.mark.parametrize("known", ["static", "batch"])
def test_while_loop(rng, norm: Norm, known: str) -> None:
    """The loop backwards reads from lists what the loop has put aside: of a fused op, x and the
    moments."""
    _check(rng, norm, _while, 1, known)


@pytest.mark.sampled(2)
@NORMS
def test_condition(rng, norm: Norm) -> None:
    """In a branch the norm may not run at all, and its gradient is in another branch."""
    _check(rng, norm, _conditions, STEPS)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "loop,count",
    [
        (_scan, 1),
        (_cases, STEPS * STEPS),
        (_condition_in_a_loop, 1),
        (_loop_in_a_condition, 1),
        (_loop_in_a_loop, 1),
        (_function_in_a_loop, 1),
    ],
    ids=lambda value: getattr(value, "__name__", "").lstrip("_"),
)
def test_other_loops_and_branches(rng, loop, count: int) -> None:
    _check(rng, LAYER, loop, count)


def test_norm_that_is_all_of_a_body(rng) -> None:
    """Its output is the body's, without anything between."""
    x, dy, values, layer, variables = RMS.draw(rng)
    states = [np.float64(x)]
    for _ in range(STEPS):
        states.append(RMS.forward(states[-1], values))
    gradient, total = np.float64(dy), 0.0
    for state in reversed(states[:-1]):
        gradient, dgamma = RMS.backward(gradient, state, values)
        total = total + dgamma
    one = {"rms_norm": 1}
    make = step_of(lambda x: _while(layer, x), variables, x, dy)
    check(make, [x, dy], [states[-1], gradient, total], one, one, units=64)


@NORMS
def test_tape_inside_a_loop(rng, norm: Norm) -> None:
    """Several steps of training in one call: forward and backward are in one body."""
    x, dy, values, layer, variables = norm.draw(rng)

    def make():
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)

        @tf.function(input_signature=[spec(x), spec(dy)])
        def step(x, dy):
            for _ in tf.range(STEPS):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(tf.tanh(layer(x)) * dy)
                for variable, gradient in zip(
                    variables, tape.gradient(loss, variables), strict=True
                ):
                    variable.assign_sub(0.1 * gradient)
            return [tf.identity(variable) for variable in variables]

        return step

    exact = [np.float64(value) for value in values]
    for _ in range(STEPS):
        dinner = dy * (1 - np.tanh(norm.forward(x, exact)) ** 2)
        gradients = norm.backward(dinner, x, exact)[1:]
        exact = [value - 0.1 * g for value, g in zip(exact, gradients, strict=True)]
    one = {norm.kind: 1}
    check(make, [x, dy], exact, one, one, units=64)


@NORMS
def test_tape_inside_a_branch(rng, norm: Norm) -> None:
    x, dy, values, layer, variables = norm.draw(rng)

    def gradients(x, dy):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
        return tape.gradient(y, [x, *variables], dy)

    def make():
        @tf.function(input_signature=[spec(x), spec(dy)])
        def step(x, dy):
            zeros = [tf.zeros_like(v) for v in (x, *variables)]
            return tf.cond(tf.size(x) > 0, lambda: gradients(x, dy), lambda: zeros)

        return step

    # The forward is in the branch for the gradient alone.
    stock, fused, report = run_both(make, [x, dy])
    assert_as_close_as_stock(stock, fused, norm.backward(dy, x, values))
    assert {r.direction: r.fused for r in report}["backward"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("norm", [LAYER, RMS, TF_KERAS_LAYER], ids=lambda norm: norm.name)
def test_gradient_of_a_gradient_of_a_loop(rng, norm: Norm) -> None:
    """The second derivative is by TensorFlow's own ops, of one fused gradient.

    It is the formula's. Stock is another for Keras' layer norm: tf.nn.moments stops a gradient
    that is zero, but whose own gradient is not.
    """
    x, dy, values, layer, variables = norm.draw(rng)

    def function(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = _while(lambda value: tf.tanh(layer(value)), x)
        return tape.gradient(y, x, dy)

    def gradient(x):
        return _exact(norm, x, dy, values)[1]

    step = 1e-5
    direction = normal(rng, *x.shape)
    make = step_of(function, [], x, direction, "static")
    stock, fused, report = run_both(make, [x, direction])
    wide = np.float64(x)
    # A Hessian is symmetric: along the direction, its product with it.
    above, below = (gradient(wide + s * step * direction) for s in (1, -1))
    exact = [gradient(wide), (above - below) / (2 * step)]
    if norm is LAYER:
        stock[1] = exact[1].astype(np.float32)
    assert_as_close_as_stock(stock, fused, exact, units=64)
    # The outer gradient takes that of the loop, too; TensorFlow drops what of it nobody reads.
    assert counts(report, "forward") == {norm.kind: 1}
    assert set(counts(report, "backward")) == {norm.kind} and not left(report)


class _Cell(keras.layers.Layer):
    """A recurrent cell with a layer norm: state = tanh(norm(input W + state U))."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.state_size = units
        self.inputs_in = keras.layers.Dense(units)
        self.states_in = keras.layers.Dense(units)
        self.norm = keras.layers.LayerNormalization(epsilon=EPSILON)

    def build(self, shape) -> None:
        self.inputs_in.build(shape)
        self.states_in.build((None, self.state_size))
        self.norm.build((None, self.state_size))

    def call(self, inputs, states):
        state = self.norm(self.inputs_in(inputs) + self.states_in(states[0]))
        state = keras.ops.tanh(state)
        return state, [state]


def test_recurrent_layer_of_keras(rng) -> None:
    x, target = normal(rng, 8, 5, 6), normal(rng, 8, 7)

    def run():
        keras.utils.set_random_seed(7)
        model = keras.Sequential([keras.Input((5, 6)), keras.layers.RNN(_Cell(7))])
        model.compile(keras.optimizers.SGD(0.5), "mse", jit_compile=False)
        fitted = model.fit(x, target, batch_size=4, epochs=3, verbose=0, shuffle=False)
        return np.array(fitted.history["loss"])

    with nv_norms_rewriter.disabled():
        stock = run()
    nv_norms_rewriter.clear_report()
    fused = run()
    assert stock[-1] < stock[0]
    # Six steps, each with sums over a few dozen elements.
    np.testing.assert_allclose(fused, stock, 64 * np.finfo(np.float32).eps)
    assert_counts(nv_norms_rewriter.report(), {"layer_norm": 1}, {"layer_norm": 1})


@pytest.mark.parametrize("loop", [_while, _conditions], ids=["loop", "branches"])
def test_v1_graph(rng, loop) -> None:
    """It is one graph with its functions, which nobody may edit in between. So the gradient is left
    to Grappler, which sees tensors that come out of lists and optionals: it stays, and is reported.
    """
    x, dy = normal(rng, *LAYER.shape, mean=1.0), normal(rng, *LAYER.shape)
    values = LAYER.parameters(rng)

    def run():
        graph = tf.Graph()
        with graph.as_default():
            feeds = [tf.compat.v1.placeholder(tf.float32, v.shape) for v in (x, dy)]
            gamma, beta = (tf.compat.v1.placeholder_with_default(v, v.shape) for v in values)

            def body(x):
                mean, variance = tf.nn.moments(x, [-1], keepdims=True)
                y = tf.nn.batch_normalization(x, mean, variance, beta, gamma, EPSILON)
                return tf.tanh(y)

            y = loop(body, feeds[0])
            fetches = [y, *tf.gradients(y, [feeds[0], gamma, beta], feeds[1])]
        with tf.compat.v1.Session(graph=graph) as session:
            return session.run(fetches, dict(zip(feeds, (x, dy), strict=True)))

    with nv_norms_rewriter.disabled():
        stock = run()
    nv_norms_rewriter.clear_report()
    fused = run()
    assert_as_close_as_stock(stock, fused, _exact(LAYER, x, dy, values), units=64)
    count = 1 if loop is _while else STEPS
    refused = {"backward: gradient_elsewhere": count}
    assert_counts(nv_norms_rewriter.report(), {"layer_norm": count}, {}, refused)


def test_disabled(rng) -> None:
    x, dy, _, layer, variables = LAYER.draw(rng)
    with nv_norms_rewriter.disabled():
        nv_norms_rewriter.clear_report()
        step = step_of(lambda x: _while(layer, x), variables, x, dy)()
        graph = optimized(step.get_concrete_function(), [x, dy])
    assert not [node.op for node in graph.node if node.op.startswith("Fused")]
    assert len(nv_norms_rewriter.report()) == 0


def test_nothing_fused_leaves_the_process(rng) -> None:
    """In the GraphDef that Python is given, bodies hold calls of functions of TensorFlow's ops."""
    x, dy, _, layer, variables = LAYER.draw(rng)
    step = step_of(lambda x: _while(layer, x), variables, x, dy)()
    graph = step.get_concrete_function().graph.as_graph_def()
    nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
    assert "StatelessWhile" in {node.op for node in nodes} or "While" in {n.op for n in nodes}
    assert not [node.op for node in nodes if node.op.startswith("Fused")]
