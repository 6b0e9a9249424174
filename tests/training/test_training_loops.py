"""Norms in loops: each step's gradient reads what the forward loop put aside for it."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from training_norms import FOUR, LAYER, Norm
from training_steps import assert_as_close_as_stock, counts, run_both, step_of

NORMS = pytest.mark.parametrize("norm", FOUR, ids=lambda norm: norm.name)
STEPS = 3


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


def _check(rng, norm: Norm, loop):
    x, dy, values, layer, variables = norm.draw(rng)

    def function(x):
        return loop(lambda value: tf.tanh(layer(value)), x)

    make = step_of(function, variables, x, dy, "static")
    stock, fused, report = run_both(make, [x, dy])
    assert_as_close_as_stock(stock, fused, _exact(norm, x, dy, values), units=64)
    return report


@NORMS
def test_unrolled(rng, norm: Norm) -> None:
    def loop(body, x):
        for _ in range(STEPS):
            x = body(x)
        return x

    report = _check(rng, norm, loop)
    assert (counts(report, "forward"), counts(report, "backward")) == (
        {norm.kind: STEPS},
        {norm.kind: STEPS},
    )


@NORMS
def test_while_loop(rng, norm: Norm) -> None:
    """The loop backwards reads x and the moments from lists; what they are, only the other loop
    knows. Its gradient stays as it is."""

    def loop(body, x):
        return tf.while_loop(lambda i, _: i < STEPS, lambda i, v: (i + 1, body(v)), (0, x))[1]

    report = _check(rng, norm, loop)
    assert (counts(report, "forward"), counts(report, "backward")) == ({norm.kind: 1}, {})


def test_scan(rng) -> None:
    def loop(body, x):
        return tf.scan(lambda value, _: body(value), tf.range(STEPS), initializer=x)[-1]

    report = _check(rng, LAYER, loop)
    assert (counts(report, "forward"), counts(report, "backward")) == ({"layer_norm": 1}, {})


def test_condition(rng) -> None:
    """In a branch the norm may not run at all, and its gradient is in another branch."""

    def loop(body, x):
        for _ in range(STEPS):
            x = tf.cond(tf.reduce_sum(x) < 1e6, lambda x=x: body(x), lambda x=x: x)
        return x

    report = _check(rng, LAYER, loop)
    assert (counts(report, "forward"), counts(report, "backward")) == ({"layer_norm": STEPS}, {})
