"""Near misses of a silu behind a fused norm, and what else reads its parts: all of it stays."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tensorflow as tf
from activations_graphs import FETCHES, C, check_unchanged, make_step, placeholder, v1
from silu_graphs import made, parameters, silu, silu_grad, step

from fused_graphs import norm, norm_grad, trace


def test_an_unknown_rank_is_left() -> None:
    """da might be a number, beside which y keeps its shape, but not as the op's dy."""
    check_unchanged(step(shape=tf.TensorShape(None)), FETCHES)


def _with_reader(reader: Callable) -> v1.GraphDef:
    def make() -> None:
        make_step("instance", 0.0, forward=silu, backward=silu_grad)
        tf.identity(reader(), name="other")

    return trace(make)


@pytest.mark.parametrize(
    "reader",
    [
        lambda: tf.tanh(made("norm:0")),
        lambda: tf.sigmoid(made("norm:0")),
        lambda: made("norm:0") + 1.0,
        lambda: silu(made("norm:0")),  # a second one
        lambda: tf.reduce_sum(made("Sigmoid:0")),
        lambda: made("Sigmoid:0") * placeholder("g"),
        lambda: tf.reduce_sum(made("Sigmoid_1:0")),
        lambda: made("dy:0") + 1.0,
        lambda: tf.nn.relu(made("norm:0")),
        lambda: tf.raw_ops.ReluGrad(gradients=placeholder("g"), features=made("norm:0")),
        lambda: tf.raw_ops.LeakyReluGrad(gradients=placeholder("g"), features=made("norm:0")),
    ],
    ids=lambda f: "",
)
def test_another_reader_of_a_part(reader: Callable) -> None:
    check_unchanged(_with_reader(reader), [*FETCHES, "other"])


@pytest.mark.parametrize("fetched", ["norm", "Sigmoid", "Sigmoid_1", "dy"])
def test_a_part_that_is_fetched(fetched: str) -> None:
    check_unchanged(step(), [*FETCHES, fetched])


def test_a_part_for_which_something_waits() -> None:
    def make() -> None:
        make_step("instance", 0.0, forward=silu, backward=silu_grad)
        with tf.control_dependencies([made("Sigmoid_1:0")]):
            tf.constant(1.0, name="waits")

    check_unchanged(trace(make), [*FETCHES, "waits"])


@pytest.mark.parametrize("device", ["CPU", None])
def test_not_on_a_gpu(device: str | None) -> None:
    check_unchanged(step(), FETCHES, device)


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_norms_without_such_kernels(kind: str) -> None:
    def make() -> None:
        silu(norm(kind, placeholder("x"), *parameters())[0], name="a")

    check_unchanged(trace(make), ["a"])


@pytest.mark.parametrize(
    "function",
    [
        tf.sigmoid,
        lambda y: y * tf.sigmoid(2.0 * y),
        lambda y: y * tf.sigmoid(-y),
        lambda y: 2.0 * (y * tf.sigmoid(y + 1.0)),
        lambda y: (y * 2.0) * tf.sigmoid(y),
        lambda y: tf.square(y) * tf.sigmoid(y),
        lambda y: y * tf.square(tf.sigmoid(y)),
        lambda y: y * tf.sigmoid(y * 1.001),
        lambda y: y * tf.sigmoid(placeholder("other")),
        lambda y: placeholder("other") * tf.sigmoid(y),
        lambda y: y * tf.sigmoid(y + placeholder("other", ())),
        lambda y: y * tf.sigmoid(y * tf.ones([C])),  # a constant that has axes
        lambda y: y * tf.sigmoid(tf.ones([7, 1, 1, 1, 1]) * y),
        lambda y: y * tf.sigmoid(tf.transpose(tf.transpose(y))),
        lambda y: y * tf.cast(tf.sigmoid(tf.cast(y, tf.float16)), tf.float32),
        lambda y: y * tf.sigmoid(tf.stop_gradient(y)),
        lambda y: y * tf.sigmoid(tf.clip_by_value(y, -3.0, 3.0)),
        lambda y: y * tf.tanh(y),
        lambda y: tf.nn.gelu(y),
        lambda y: tf.nn.silu(y),  # inside what has a gradient of its own, and may yet need it
        lambda y: y * tf.nn.relu6(y + 3.0) / 6.0,
    ],
    ids=lambda f: "",
)
def test_other_functions(function: Callable) -> None:
    def make() -> None:
        tf.identity(function(norm("instance", placeholder("x"), *parameters())[0]), name="a")

    check_unchanged(trace(make), ["a"])


def _wrong_gradients() -> list[Callable]:
    def sigmoid_alone(da, y, a, slope, name):
        return tf.raw_ops.Mul(x=da, y=tf.sigmoid(y), name=name)

    def twice(da, y, a, slope, name):
        return tf.raw_ops.Mul(x=da, y=2.0 * silu_grad(tf.ones(()), y), name=name)

    def without_one(da, y, a, slope, name):
        s = tf.sigmoid(y)
        return tf.raw_ops.Mul(x=da, y=s * (y * (1.0 - s)), name=name)

    def nearly_one(da, y, a, slope, name):
        s = tf.sigmoid(y)
        return tf.raw_ops.Mul(x=da, y=s * (1.0001 + y * (1.0 - s)), name=name)

    def divided(da, y, a, slope, name):
        s = tf.sigmoid(y)
        return tf.raw_ops.RealDiv(x=da, y=s * (1.0 + y * (1.0 - s)), name=name)

    def in_parts(da, y, a, slope, name):
        s = tf.sigmoid(y)
        return tf.raw_ops.Mul(x=da * s, y=1.0 + y * (1.0 - s), name=name)

    def of_another(da, y, a, slope, name):
        return silu_grad(da, placeholder("other"), name=name)

    def of_x(da, y, a, slope, name):
        return silu_grad(da, made("x:0"), name=name)

    return [
        sigmoid_alone,
        twice,
        without_one,
        nearly_one,
        divided,
        in_parts,
        of_another,
        of_x,
    ]


@pytest.mark.parametrize("backward", _wrong_gradients(), ids=lambda f: f.__name__)
def test_another_gradient(backward: Callable) -> None:
    check_unchanged(step(backward=backward), FETCHES)


def test_only_some_gradients_of_the_norm_are_fused() -> None:
    def make() -> None:
        make_step("instance", 0.0, forward=silu, backward=silu_grad)
        y = made("norm:0")
        norm_grad("instance", tf.tanh(placeholder("g")), made("x:0"), made("gamma:0"),
                  [y.op.outputs[1], y.op.outputs[2]], name="another")  # fmt: skip

    check_unchanged(trace(make), [*FETCHES, "another"])


def test_a_gradient_of_another_activation() -> None:
    """It is read by a gradient of the norm, as silu's is."""

    def make() -> None:
        x, (gamma, beta) = placeholder("x"), parameters()
        y, *statistics = norm("instance", x, gamma, beta, name="norm")
        silu(y, name="a")
        dy = tf.raw_ops.LeakyReluGrad(gradients=placeholder("da"), features=y)
        tf.identity(norm_grad("instance", dy, x, gamma, statistics)[0], name="dx")

    check_unchanged(trace(make), ["a", "dx"])


def test_the_gradient_of_sigmoid_by_tensorflow_is_left(rng) -> None:
    """x * sigmoid(x) by hand has a gradient of another form: several terms of y and dy."""

    def make() -> None:
        x, (gamma, beta) = placeholder("x"), parameters()
        y, *statistics = norm("instance", x, gamma, beta, name="norm")
        a = silu(y, name="a")
        (dy,) = tf.gradients(a, y, placeholder("da"))
        tf.identity(norm_grad("instance", dy, x, gamma, statistics)[0], name="dx")

    check_unchanged(trace(make), ["a", "dx"])
