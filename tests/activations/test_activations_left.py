"""Near misses: activations beside fused norms that must stay as they are."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from activations_graphs import (
    FETCHES,
    KINDS,
    SHAPE,
    C,
    activation,
    activation_grad,
    activations,
    check_unchanged,
    make_step,
    placeholder,
    rewritten,
    run,
    slopes,
    v1,
)

from fused_graphs import norm, norm_grad, trace

SLOPES = [0.0, 0.2]
both = pytest.mark.parametrize("slope", SLOPES)


def parameters() -> tuple:
    return placeholder("gamma", [C]), placeholder("beta", [C])


def made(name: str):
    """A tensor of the graph in the making."""
    return v1.get_default_graph().get_tensor_by_name(name)


@pytest.mark.parametrize("device", ["CPU", "/job:worker/task:1/device:CPU:0", None])
@pytest.mark.parametrize("kind", KINDS)
@both
def test_norms_that_are_not_on_a_gpu(slope, kind, device):
    check_unchanged(trace(lambda: make_step(kind, slope)), FETCHES, device)


@pytest.mark.parametrize("kind", ["layer", "rms"])
@both
def test_norms_without_such_kernels(slope, kind):
    def make():
        y = norm(kind, placeholder("x"), *parameters())[0]
        activation(y, slope, name="a")

    check_unchanged(trace(make), ["a"])


@pytest.mark.parametrize("fetched", ["norm", "dy"])
@both
def test_what_goes_is_fetched(slope, fetched):
    check_unchanged(trace(lambda: make_step("instance", slope)), [*FETCHES, fetched])


@pytest.mark.parametrize("samples", [(None, 1, 3), (1, 1, 3), (None, 3, 1)])
@pytest.mark.parametrize("silu", [False, True])
def test_y_whose_shape_is_asked_for_may_have_more_samples_than_x(rng, silu, samples):
    """Of a norm that is scaled sample by sample."""
    known, of_x, of_scale = samples

    def make():
        x = placeholder("x", [known, *SHAPE[1:]])
        scale = placeholder("scale", [None, 1, 1, C])
        mean, variance = tf.nn.moments(x, [1, 2], keepdims=True)
        y = (x - mean) * tf.math.rsqrt(variance + 1e-3) * scale
        tf.identity(y * tf.sigmoid(y) if silu else tf.nn.relu(y), name="a")
        tf.identity(tf.shape(y), name="sizes")

    graph = trace(make)
    feeds = {
        "x": rng.normal(size=(of_x, *SHAPE[1:])).astype(np.float32),
        "scale": rng.normal(size=(of_scale, 1, 1, C)).astype(np.float32),
    }
    want = run(graph, feeds, ["a", "sizes"])
    got = run(rewritten(graph, ["a", "sizes"]), feeds, ["a", "sizes"])
    np.testing.assert_allclose(got[0], want[0], 1e-5, 1e-5)
    np.testing.assert_array_equal(want[1], SHAPE)
    np.testing.assert_array_equal(got[1], SHAPE)


@pytest.mark.parametrize(
    "function",
    [
        tf.nn.relu6,
        tf.nn.elu,
        tf.nn.selu,
        tf.nn.silu,
        tf.nn.gelu,
        tf.nn.tanh,
        tf.nn.softplus,
        tf.abs,
        lambda y: tf.maximum(y, 0.0),
        lambda y: tf.nn.crelu(y),
        lambda y: tf.nn.relu(-y),
        lambda y: tf.nn.leaky_relu(y, 1.0),
        lambda y: tf.nn.leaky_relu(y, float("nan")),
        lambda y: tf.nn.leaky_relu(y, float("inf")),
    ],
)
def test_other_functions(function):
    def make():
        tf.identity(function(norm("instance", placeholder("x"), *parameters())[0]), name="a")

    check_unchanged(trace(make), ["a"])


@pytest.mark.parametrize(
    "reader",
    [
        tf.tanh,
        lambda y: tf.nn.relu(y),
        lambda y: tf.nn.leaky_relu(y, 0.2),
        tf.stop_gradient,
        lambda y: y + 1.0,
        lambda y: tf.reduce_sum(y),
        lambda y: tf.raw_ops.ReluGrad(gradients=placeholder("g"), features=y),
        lambda y: tf.raw_ops.LeakyReluGrad(gradients=y, features=placeholder("g"), alpha=0.2),
        lambda y: tf.raw_ops.Relu6Grad(gradients=placeholder("g"), features=y),
        lambda y: tf.raw_ops.LeakyReluGrad(gradients=placeholder("g"), features=y, alpha=0.2),
    ],
    ids=lambda f: "",
)
@both
def test_y_with_another_reader(slope, reader):
    def make():
        make_step("instance", slope)
        tf.identity(reader(made("norm:0")), name="other")

    check_unchanged(trace(make), [*FETCHES, "other"])


@both
def test_identity_of_y_with_another_reader(slope):
    def make():
        y = tf.identity(norm("instance", placeholder("x"), *parameters())[0])
        activation(y, slope, name="a")
        tf.tanh(y, name="other")

    check_unchanged(trace(make), ["a", "other"])


@pytest.mark.parametrize("fetches", [["a", "between"], ["a"]], ids=["fetched", "waits"])
def test_identity_of_y_that_must_stay(fetches):
    def make():
        y = norm("instance", placeholder("x"), *parameters())[0]
        waits = [placeholder("first", [])] if len(fetches) == 1 else []
        with tf.control_dependencies(waits):
            y = tf.identity(y, name="between")
        activation(y, 0.2, name="a")

    check_unchanged(trace(make), fetches)


@both
def test_activation_of_something_else(slope):
    """Of mean, of rstd, of x."""

    def make():
        x = placeholder("x")
        y, mean, rstd = norm("instance", x, *parameters())
        for i, tensor in enumerate((x, mean, rstd)):
            activation(tensor, slope, name=f"a{i}")
        tf.tanh(y, name="y")

    check_unchanged(trace(make), ["y", "a0", "a1", "a2"])


@pytest.mark.parametrize(("forward", "backward"), [(0.2, 0.3), (0.2, 0.0), (0.0, 0.2), (0.2, -0.2)])
def test_gradient_of_another_slope(forward, backward):
    def other(da, y, a, slope, name):
        return activation_grad(da, y, y, backward, name)

    check_unchanged(trace(lambda: make_step("instance", forward, backward=other)), FETCHES)


@pytest.mark.parametrize("of", ["other relu", "x", "da", "dy", "relu of x"])
def test_gradient_of_another_activation(of):
    """Its features are other tensors of the same shape."""

    def backward(da, y, a, slope, name):
        features = {
            "other relu": lambda: tf.nn.relu(placeholder("z")),
            "x": lambda: made("x:0"),
            "da": lambda: da,
            "dy": lambda: tf.tanh(a),
            "relu of x": lambda: tf.nn.relu(made("x:0")),
        }[of]()
        return tf.raw_ops.ReluGrad(gradients=da, features=features, name=name)

    check_unchanged(trace(lambda: make_step("instance", 0.0, backward=backward)), FETCHES)


def test_gradient_of_a_leaky_relu_by_its_output():
    """Whose sign is y's only if the slope is positive."""

    def backward(da, y, a, slope, name):
        return activation_grad(da, a, a, slope, name)

    check_unchanged(trace(lambda: make_step("instance", -0.2, backward=backward)), FETCHES)


@pytest.mark.parametrize(
    "change",
    [
        lambda dy: dy + placeholder("other"),
        lambda dy: tf.add_n([dy, placeholder("other"), placeholder("another")]),
        lambda dy: 2.0 * dy,
        lambda dy: tf.identity(dy) * 1.0,
        lambda dy: tf.nn.relu(dy),
        lambda dy: tf.stop_gradient(dy),
    ],
    ids=["sum", "sum of three", "product", "product with 1", "relu", "stopped"],
)
@both
def test_dy_that_more_goes_into(slope, change):
    """A second loss, or a residual around the activation."""

    def backward(da, y, a, slope, name):
        return change(activation_grad(da, y, a, slope, name))

    check_unchanged(trace(lambda: make_step("instance", slope, backward=backward)), FETCHES)


@both
def test_dy_with_another_reader(slope):
    """A gradient of beta that is computed apart, say."""

    def make():
        make_step("instance", slope)
        tf.reduce_sum(made("dy:0"), name="other")

    check_unchanged(trace(make), [*FETCHES, "other"])


@both
def test_dy_that_a_gradient_reads_as_x(slope):
    def make():
        make_step("instance", slope)
        dy = made("dy:0")
        statistics = [placeholder(n, [3, C]) for n in ("mean", "rstd")]
        dx = norm_grad("instance", placeholder("z"), dy, made("gamma:0"), statistics)[0]
        tf.identity(dx, name="other")

    check_unchanged(trace(make), [*FETCHES, "other"])


@both
def test_dy_that_another_norms_gradient_reads(slope):
    def make():
        make_step("instance", slope)
        x = placeholder("z")
        y, *statistics = norm("instance", x, *(made(f"{n}:0") for n in ("gamma", "beta")))
        dx = norm_grad("instance", made("dy:0"), x, made("gamma:0"), statistics)[0]
        tf.identity(y, name="y2")
        tf.identity(dx, name="other")

    check_unchanged(trace(make), [*FETCHES, "y2", "other"])


@both
def test_one_of_two_gradients_is_by_y_itself(slope):
    """The norm's own gradient, in a model with two heads, say."""

    def make():
        make_step("instance", slope)
        statistics = [made("norm:1"), made("norm:2")]
        gamma = made("gamma:0")
        dx = norm_grad("instance", placeholder("d"), made("x:0"), gamma, statistics)[0]
        tf.identity(dx, name="other")

    check_unchanged(trace(make), [*FETCHES, "other"])


def _make_crossed(what: str, slope: float) -> None:
    """A gradient that is not quite that of the norm before the activation."""
    kind = "group" if what == "kind" else "instance"
    x, (gamma, beta) = placeholder("x"), parameters()
    y, *statistics = norm("instance", x, gamma, beta)
    a = activation(y, slope, name="a")
    dy = activation_grad(placeholder("da"), y, a, slope)
    if what == "mean":
        statistics[0] = placeholder("mean", [3, C])
    elif what == "rstd":
        statistics[1] = 2.0 * statistics[1]
    elif what == "turned":
        statistics.reverse()
    elif what == "x":
        x = placeholder("z")
    elif what == "gamma":
        gamma = 2.0 * gamma
    elif what == "no gamma":
        gamma = None
    elif what == "beta for gamma":
        gamma = beta
    outputs = norm_grad(kind, dy, x, gamma, statistics, groups=C)
    tf.identity(outputs[0], name="dx")


@pytest.mark.parametrize(
    "what", ["mean", "rstd", "turned", "x", "gamma", "no gamma", "beta for gamma", "kind"]
)
@both
def test_gradient_of_another_norm(slope, what):
    check_unchanged(trace(lambda: _make_crossed(what, slope)), ["a", "dx"])


@pytest.mark.parametrize(("last", "first"), [(True, False), (False, True)])
def test_gradient_of_another_format(last, first):
    def make():
        x, (gamma, beta) = placeholder("x", [3, C, C, C]), parameters()
        y, *statistics = norm("instance", x, gamma, beta, last)
        a = activation(y, 0.0, name="a")
        dy = activation_grad(placeholder("da", [3, C, C, C]), y, a, 0.0)
        tf.identity(norm_grad("instance", dy, x, gamma, statistics, first)[0], name="dx")

    check_unchanged(trace(make), ["a", "dx"])


@pytest.mark.parametrize("where", ["a", "dy", "norm", "grad"])
@both
def test_other_devices(slope, where):
    graph = trace(lambda: make_step("instance", slope))
    for node in graph.node:
        node.device = "/device:GPU:1" if node.name == where else "/device:GPU:0"
    check_unchanged(graph, FETCHES)


@pytest.mark.parametrize("where", ["a", "dy", "norm", "grad"])
def test_gradients_of_their_own(where):
    graph = trace(lambda: make_step("instance", 0.2))
    for node in graph.node:
        if node.name == where:
            node.attr["_gradient_op_type"].s = b"Mine"
    check_unchanged(graph, FETCHES)


@pytest.mark.parametrize("waits_for", ["norm", "dy", "grad", "behind"])
def test_activation_that_waits_for_what_comes_of_the_norm(waits_for):
    """In the norm's place it would wait for itself."""

    def make():
        y, *statistics = norm("instance", placeholder("x"), *parameters(), name="norm")
        behind = tf.tanh(statistics[0], name="behind")
        dy = placeholder("d")
        dx = norm_grad("instance", dy, placeholder("z"), None, statistics, name="grad")[0]
        waited = {"norm": y, "dy": dx, "grad": dx, "behind": behind}[waits_for]
        with tf.control_dependencies([waited]):
            activation(y, 0.2, name="a")
        tf.identity(dx, name="dx")

    check_unchanged(trace(make), ["a", "dx", "behind"])


def test_activation_that_waits_in_a_graph_with_branches():
    """What it waits for may never run, but the norm's statistics are read elsewhere."""

    def make():
        y, mean, _ = norm("instance", placeholder("x"), *parameters())
        branch, _ = tf.raw_ops.Switch(data=placeholder("z"), pred=placeholder("p", [], tf.bool))
        with tf.control_dependencies([tf.identity(branch)]):
            activation(y, 0.2, name="a")
        tf.identity(mean, name="mean")

    check_unchanged(trace(make), ["a", "mean"])


def test_second_activation_stays():
    """relu(relu(y)): the first is taken in, the second reads it, as do both gradients."""

    def make():
        x, (gamma, beta) = placeholder("x"), parameters()
        y, *statistics = norm("instance", x, gamma, beta)
        a = tf.nn.relu(y, name="a")
        b = tf.nn.relu(a, name="b")
        db = tf.raw_ops.ReluGrad(gradients=placeholder("d"), features=b, name="db")
        da = tf.raw_ops.ReluGrad(gradients=db, features=a, name="da")
        tf.identity(norm_grad("instance", da, x, gamma, statistics)[0], name="dx")

    after = rewritten(trace(make), ["b", "dx"])
    assert activations(after) == ["b", "db"]
    assert slopes(after) == [0.0, 0.0]
    (gradient,) = [n for n in after.node if n.op == "FusedInstanceNormGrad"]
    assert gradient.input[0] == "db"


def test_gradient_of_the_second_activation_is_not_the_firsts():
    """It gives what is to go through the first one's gradient, too."""

    def make():
        x, (gamma, beta) = placeholder("x"), parameters()
        y, *statistics = norm("instance", x, gamma, beta)
        a = tf.nn.relu(y, name="a")
        b = tf.nn.relu(a, name="b")
        db = tf.raw_ops.ReluGrad(gradients=placeholder("d"), features=b, name="db")
        tf.identity(norm_grad("instance", db, x, gamma, statistics)[0], name="dx")

    check_unchanged(trace(make), ["b", "dx"])


def test_second_pass_over_one_that_has_an_activation_inside():
    def make():
        y = norm("instance", placeholder("x"), *parameters())[0]
        tf.nn.relu(tf.nn.leaky_relu(y, 0.2, name="a"), name="b")

    after = rewritten(trace(make), ["b"])
    assert activations(after) == ["b"]
