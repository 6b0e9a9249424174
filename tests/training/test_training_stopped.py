"""Norms that stop or replace a gradient inside: their values are a norm's, their gradients are not.

Where TensorFlow differentiates after the rewrite (tapes outside of a function, loops, branches),
such a norm must stay; where it has done so before, both are judged by their values.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from training_norms import EPSILON
from training_steps import assert_as_close_as_stock, counts, flat, normal

import nv_norms_rewriter
import oracle
from nv_norms_rewriter import _process

SHAPE = (4, 6, 16)


@tf.custom_gradient
def _halved(value):
    return tf.identity(value), lambda upstream: 0.5 * upstream


@tf.RegisterGradient("Tenfold")
def _tenfold(op, upstream):
    return 10.0 * upstream


def _squares(what: str, x, mean):
    """(x - mean)^2 by a SquaredDifference of which one or both operands are stopped."""
    stop, difference = tf.stop_gradient, tf.math.squared_difference
    return {
        "squared x": lambda: difference(stop(x), mean),
        "squared copy": lambda: difference(stop(1.0 * x), mean),
        "squared both": lambda: difference(stop(x), stop(mean)),
        "squared centred": lambda: difference(stop(x - mean), 0.0),
    }[what]()


def _norm(what: str, x, gamma, beta):
    """A layer norm, `what` of it behind stop_gradient (or in "halved" rstd, a gradient halved)."""

    def maybe(name, value):
        return tf.stop_gradient(value) if name == what else value

    mean = maybe("mean", tf.reduce_mean(x, -1, keepdims=True))
    centred = maybe("centred", x - mean)
    squares = _squares(what, x, mean) if what.startswith("squared") else tf.square(centred)
    variance = maybe("variance", tf.reduce_mean(squares, -1, keepdims=True))
    rstd = maybe("rstd", tf.math.rsqrt(variance + EPSILON))
    xhat = maybe("xhat", centred * (_halved(rstd) if what == "halved" else rstd))
    return maybe("y", xhat * gamma + beta) + 0.5 * x


def _tape(function, x, variables, dy, persistent: bool = False):
    with tf.GradientTape(persistent=persistent) as tape:
        tape.watch(x)
        y = function(x)
    return y, tape.gradient(y, [x, *variables], dy, unconnected_gradients="zero")


def _eager(function, *arguments):
    return _tape(function, *arguments)


def _outside(function, *arguments):
    return _tape(tf.function(function, autograph=False), *arguments)


def _persistent(function, *arguments):
    return _tape(tf.function(function, autograph=False), *arguments, persistent=True)


def _compiled(function, *arguments):
    return _tape(tf.function(function, autograph=False, jit_compile=True), *arguments)


def _branch(function, x, variables, dy):
    @tf.function(autograph=False)
    def step(x, dy):
        return _tape(
            lambda x: tf.cond(tf.size(x) > 0, lambda: function(x), lambda: x), x, variables, dy
        )

    return step(x, dy)


def _loop(function, x, variables, dy):
    @tf.function(autograph=False)
    def step(x, dy):
        return _tape(
            lambda x: tf.while_loop(
                lambda i, _: i < 1, lambda i, v: (i + 1, function(v)), (0, x), maximum_iterations=1
            )[1],
            x,
            variables,
            dy,
        )

    return step(x, dy)


def _inside(function, x, variables, dy):
    return tf.function(lambda x, dy: _tape(function, x, variables, dy), autograph=False)(x, dy)


@pytest.mark.sampled(10)
@pytest.mark.parametrize(
    "run", [_outside, _persistent, _compiled, _branch, _loop, _inside], ids=lambda run: run.__name__
)
@pytest.mark.parametrize(
    "what",
    [
        "mean", "centred", "variance", "rstd", "xhat", "y", "halved", "squared x", "squared copy",
        "squared both", "squared centred",
    ],
)  # fmt: skip
def test_stopped_gradients_stay_stopped(rng, monkeypatch, what: str, run: Callable) -> None:
    x, dy = normal(rng, *SHAPE, mean=1.0), normal(rng, *SHAPE)
    values = [rng.uniform(0.5, 1.5, 16).astype("f"), rng.normal(size=16).astype("f")]

    def results(run, dtype: str):
        variables = [tf.Variable(value, dtype=dtype) for value in values]
        function = lambda x: _norm(what, x, *variables)  # noqa: E731
        return flat(run(function, tf.constant(x, dtype), variables, tf.constant(dy, dtype)))

    monkeypatch.setitem(_process.state()["options"], "xla", "all")
    with nv_norms_rewriter.disabled():
        stock = results(run, "float32")
    nv_norms_rewriter.clear_report()
    fused = results(run, "float32")
    assert_as_close_as_stock(stock, fused, results(_eager, "float64"))
    report = nv_norms_rewriter.report()
    made = [record for record in report if record.where != "graph"]
    assert made or run is _inside
    if what == "y":  # behind the norm, which is fused; its output is stopped still
        assert all(record.fused and record.direction == "forward" for record in made), report
        return
    assert not [record for record in made if record.fused], report
    if run is _compiled:
        assert not counts(report, "forward")


@pytest.mark.parametrize("run", [_outside, _compiled, _loop], ids=lambda run: run.__name__)
@pytest.mark.parametrize("what", ["gamma", "beta"])
def test_a_replaced_gradient_of_a_parameter_stays_so(
    rng, monkeypatch, what: str, run: Callable
) -> None:
    x, dy = normal(rng, *SHAPE, mean=1.0), normal(rng, *SHAPE)

    def results():
        gamma, beta = (tf.Variable(v, dtype=tf.float32) for v in (np.ones(16), np.zeros(16)))

        def function(x):
            # In a function: eagerly there is no such map.
            graph = tf.compat.v1.get_default_graph()
            with graph.gradient_override_map({"Identity": "Tenfold"}):
                scale = tf.identity(gamma) if what == "gamma" else gamma
                offset = tf.identity(beta) if what == "beta" else beta
            return _norm("", x, scale, offset)

        return flat(run(function, tf.constant(x), [gamma, beta], tf.constant(dy)))

    monkeypatch.setitem(_process.state()["options"], "xla", "all")
    with nv_norms_rewriter.disabled():
        stock = results()
    nv_norms_rewriter.clear_report()
    fused = results()
    assert nv_norms_rewriter.report().fused
    for a, b in zip(fused, stock, strict=True):
        np.testing.assert_allclose(a, b, 1e-4, 1e-4 * np.abs(b).max())


def test_gradient_that_is_stopped_because_it_is_zero(rng) -> None:
    """tf.nn.moments does so to the mean in the variance; that is no reason to leave a norm."""
    x, dy = normal(rng, *SHAPE, mean=1.0), normal(rng, *SHAPE)

    def function(x):
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        return (x - mean) * tf.math.rsqrt(variance + EPSILON)

    nv_norms_rewriter.clear_report()
    _outside(function, tf.constant(x), [], tf.constant(dy))
    report = nv_norms_rewriter.report()
    assert counts(report, "forward") == counts(report, "backward") == {"layer_norm": 1}


def test_stopped_gradient_beside_another_norm(rng) -> None:
    """Two norms of one tensor in one sum: one op's output stands for both."""
    x, dy = normal(rng, *SHAPE, mean=1.0), normal(rng, *SHAPE)
    ones, zeros = np.ones(16), np.zeros(16)

    def results(run, dtype: str):
        def function(x):
            first = _norm("", x, tf.constant(ones, dtype), tf.constant(zeros, dtype))
            second = _norm("rstd", x, tf.constant(2 * ones, dtype), tf.constant(zeros, dtype))
            return first + second

        return flat(run(function, tf.constant(x, dtype), [], tf.constant(dy, dtype)))

    with nv_norms_rewriter.disabled():
        stock = results(_outside, "float32")
    fused = results(_outside, "float32")
    assert_as_close_as_stock(stock, fused, results(_eager, "float64"))


def _gradient_by_hand(what: str, x, gamma, dy):
    """dx and xhat * gamma of a layer norm, `what` of dx behind stop_gradient."""

    def maybe(name, value):
        return tf.stop_gradient(value) if name == what else value

    def mean_of(value):
        return tf.reduce_mean(value, -1, keepdims=True)

    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    rstd = tf.math.rsqrt(variance + EPSILON)
    xhat = (x - mean) * rstd
    w = dy * gamma
    inner = w - maybe("mean of w", mean_of(w)) - maybe("along xhat", xhat * mean_of(w * xhat))
    return maybe("rstd", rstd) * inner, xhat * gamma


@pytest.mark.sampled(3)
@pytest.mark.parametrize("what", ["", "rstd", "mean of w", "along xhat"])
@pytest.mark.parametrize("jit", [None, True], ids=["tape", "xla"])
def test_gradient_by_hand_that_a_tape_differentiates_again(rng, what: str, jit: bool) -> None:
    """Its second derivatives are what is asked for; without a stop it may be fused.

    (Those of tf.nn.moments are stopped, too, where the mean's gradient is 0 in the first ones only:
    of the second ones a fused op gives the true ones, so that x is left out where nothing stops.)
    """
    x, dy = normal(rng, *SHAPE, mean=1.0), normal(rng, *SHAPE)
    gamma = tf.constant(rng.uniform(0.5, 2.0, SHAPE[-1]).astype(np.float32))
    sources = [tf.constant(x), gamma, tf.constant(dy)]

    def results() -> list[np.ndarray]:
        function = tf.function(lambda *s: _gradient_by_hand(what, *s), jit_compile=jit)
        with tf.GradientTape() as tape:
            tape.watch(sources)
            loss = tf.reduce_sum(function(*sources)[0] ** 3)
        return [each.numpy() for each in tape.gradient(loss, sources)]

    with nv_norms_rewriter.disabled():
        stock = results()
    nv_norms_rewriter.configure(xla="all")
    try:
        nv_norms_rewriter.clear_report()
        fused = results()
    finally:
        nv_norms_rewriter.configure(xla="auto")
    report = nv_norms_rewriter.report()
    # What a tape has differentiated is Grappler's, which sees values alone.
    traced = [record for record in report if record.where != "graph"]
    assert {record.reason for record in traced} == {"stops_a_gradient" if what else ""}, report
    assert "backward" in {record.direction for record in traced}
    for got, want in list(zip(fused, stock, strict=True))[0 if what else 1 :]:
        np.testing.assert_allclose(got, want, 1e-3, 1e-4 * np.abs(want).max())


@pytest.mark.parametrize("jit", [True, None], ids=["compiled", "not"])
@pytest.mark.parametrize("inside", [True, False], ids=["tape inside", "tape outside"])
def test_norm_of_what_is_stopped(rng, monkeypatch, jit: bool | None, inside: bool) -> None:
    """As behind a frozen part of a model: the norm is whole, and reads what is stopped."""
    monkeypatch.setitem(_process.state()["options"], "xla", "all")
    x, dy = normal(rng, *SHAPE, mean=3.0), normal(rng, *SHAPE)
    gamma = tf.Variable(rng.uniform(0.5, 2.0, SHAPE[-1]).astype("f"))

    def norm(x):
        mean, variance = tf.nn.moments(stopped := tf.stop_gradient(2.0 * x), [-1], keepdims=True)
        return (stopped - mean) * tf.math.rsqrt(variance + EPSILON) * gamma + x

    def step(x):
        return _tape(norm if inside else function, x, [gamma], dy)

    function = tf.function(step if inside else norm, jit_compile=jit, autograph=False)
    nv_norms_rewriter.clear_report()
    _, (dx, dgamma) = (function if inside else step)(tf.constant(x))
    fused = {"layer_norm forward": 1, "layer_norm backward": 1}
    assert nv_norms_rewriter.report().counts == fused
    xhat = oracle.layer_norm(2.0 * np.float64(x), epsilon=EPSILON).y
    np.testing.assert_allclose(dx, dy, 1e-6, 1e-6)
    np.testing.assert_allclose(dgamma, (dy * xhat).sum((0, 1)), 1e-4, 1e-4)
