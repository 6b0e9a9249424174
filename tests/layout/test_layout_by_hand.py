"""A norm between two Transposes takes on the layout of its neighbours; values against NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf
from layout_graphs import NORMS, TO_FIRST, TO_LAST, check, layouts, nodes, oracle, to_first, to_last

import nv_norms_rewriter
import oracle as formulas
from fused_graphs import EPSILON, norm, norm_grad, placeholder, run, trace

SHAPES = {3: (2, 5, 6), 4: (2, 5, 3, 6), 5: (2, 5, 3, 2, 6)}  # channels last
FIRST = {rank: tuple(np.array(shape)[TO_FIRST[rank]]) for rank, shape in SHAPES.items()}
X = FIRST[4]

_erf = np.vectorize(math.erf)


def draw(rng: np.random.Generator, shape, scale=1.0) -> np.ndarray:
    return (scale * rng.normal(size=shape) + 0.3).astype(np.float32)


def parameters(rng: np.random.Generator, count: int = 6) -> tuple[np.ndarray, np.ndarray]:
    return 1 + 0.2 * draw(rng, count), draw(rng, count)


def last(x: np.ndarray) -> np.ndarray:
    return x.transpose(TO_LAST[x.ndim])


def first(x: np.ndarray) -> np.ndarray:
    return x.transpose(TO_FIRST[x.ndim])


@pytest.mark.parametrize("rank", [3, 4, 5])
@pytest.mark.parametrize("runs_last", [True, False], ids=["channels_last", "channels_first"])
@pytest.mark.parametrize("kind", NORMS)
def test_pair_of_transposes_goes(kind, runs_last, rank, rng):
    """y = T(norm(T(x))): 2 Transposes, then none."""
    there, back = (to_last, to_first) if runs_last else (to_first, to_last)
    shape = FIRST[rank] if runs_last else SHAPES[rank]
    gamma, beta = parameters(rng)

    def make():
        x = placeholder("x", shape)
        y = norm(kind, there(x), tf.constant(gamma), tf.constant(beta), last=runs_last)[0]
        tf.identity(back(y), name="y")

    x = draw(rng, shape)
    expected = oracle(kind, x, gamma, beta, last=not runs_last)
    after = check(trace(make), {"x": x}, {"y": expected}, before=2, after=0)
    (fused,) = (node for node in after.node if node.op.startswith("Fused"))
    if kind in ("instance", "group"):
        assert fused.attr["data_format"].s == (b"NC..." if runs_last else b"N...C")
    else:
        assert list(fused.attr["axis"].list.i) == ([1 - rank] if runs_last else [-1])


def _silu(y):
    return y * tf.sigmoid(y)


def _gelu(y):
    return 0.5 * y * (1.0 + tf.math.erf(y * np.float32(math.sqrt(0.5))))


def _gelu_tanh(y):
    return 0.5 * y * (1.0 + tf.tanh(0.8 * (y + 0.044715 * tf.pow(y, 3.0))))


NEIGHBOURS = {
    "relu": (tf.nn.relu, lambda y: np.maximum(y, 0)),
    "leaky_relu": (lambda y: tf.nn.leaky_relu(y, 0.1), lambda y: np.where(y > 0, y, 0.1 * y)),
    "silu": (_silu, lambda y: y / (1 + np.exp(-y))),
    "gelu": (_gelu, lambda y: 0.5 * y * (1 + _erf(y * math.sqrt(0.5)))),
    "gelu_tanh": (
        _gelu_tanh,
        lambda y: 0.5 * y * (1 + np.tanh(0.8 * (y + 0.044715 * y**3))),
    ),
    "cast": (lambda y: tf.cast(tf.cast(y, tf.float64), tf.float32), lambda y: y),
    "elu": (tf.nn.elu, lambda y: np.where(y > 0, y, np.expm1(np.minimum(y, 0)))),
    "clip": (lambda y: tf.clip_by_value(y, -0.5, 0.5), lambda y: np.clip(y, -0.5, 0.5)),
    "select": (lambda y: tf.where(y > 0.1, y, 3 * y), lambda y: np.where(y > 0.1, y, 3 * y)),
    "add_n": (lambda y: tf.add_n([y, 2 * y, -y]), lambda y: 2 * y),
    "channels": (
        lambda y: y * tf.constant(np.arange(1, 7), tf.float32) + 1,
        lambda y: y * np.arange(1, 7) + 1,
    ),
    "bias": (
        lambda y: tf.nn.bias_add(y, tf.constant(np.arange(1, 7), tf.float32)),
        lambda y: y + np.arange(1, 7),
    ),
    "attention_per_channel": (
        lambda y: y * tf.sigmoid(tf.reduce_mean(y, [1, 2], keepdims=True)),
        lambda y: y / (1 + np.exp(-y.mean(axis=(1, 2), keepdims=True))),
    ),
    "concat_and_split": (
        lambda y: tf.add(*tf.split(tf.concat([y, 2 * y], 3), 2, 3)),
        lambda y: np.add(*np.split(np.concatenate([y, 2 * y], 3), 2, 3)),
    ),
    "slice_and_tile": (
        lambda y: tf.tile(tf.slice(y, [0, 1, 0, 0], [2, 1, 3, 6]), [1, 5, 1, 1]),
        lambda y: np.tile(y[:, 1:2], [1, 5, 1, 1]),
    ),
    "broadcast_to_shape": (
        lambda y: tf.broadcast_to(tf.reduce_max(y, [1, 2], keepdims=True), tf.shape(y)) - y,
        lambda y: y.max((1, 2), keepdims=True) - y,
    ),
    "fill": (lambda y: y * tf.fill(tf.shape(y), 3.0), lambda y: 3 * y),
}


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_neighbour_goes_along(name, rng):
    """y = T(neighbour(norm(T(x)))): 2 Transposes, then none."""
    in_graph, in_numpy = NEIGHBOURS[name]
    gamma, beta = parameters(rng)

    def make():
        x = placeholder("x", X)
        y = norm("group", to_last(x), tf.constant(gamma), tf.constant(beta))[0]
        tf.identity(to_first(in_graph(y)), name="y")

    x = draw(rng, X)
    y = oracle("group", last(x), gamma, beta)
    check(trace(make), {"x": x}, {"y": first(in_numpy(y))}, before=2, after=0)


def test_residual_and_two_readers(rng):
    """Two inputs and two outputs channels first: 4 Transposes, then none."""

    def make():
        x = to_last(placeholder("x", X))
        y = norm("instance", x)[0] + to_last(placeholder("r", X))
        tf.identity(to_first(y), name="y")
        tf.identity(to_first(tf.nn.relu(y)), name="z")

    x, r = draw(rng, X), draw(rng, X)
    y = oracle("instance", x, last=False) + r
    check(trace(make), {"x": x, "r": r}, {"y": y, "z": np.maximum(y, 0)}, before=4, after=0)


def test_same_tensor_transposed_twice_counts_once(rng):
    """The layout pass gives each reader a Transpose of its own."""

    def make():
        x = placeholder("x", X)
        y = norm("instance", to_last(x))[0] - to_last(x)
        tf.identity(to_first(y, name="a"), name="y")
        tf.identity(to_first(y, name="b"), name="z")

    x = draw(rng, X)
    y = oracle("instance", x, last=False) - x
    check(trace(make), {"x": x}, {"y": y, "z": y}, before=4, after=0)


def test_fewest_bytes_win(rng):
    """x and y channels first, z last and as large: one Transpose is left, between y and z."""

    def make():
        y = norm("instance", to_last(placeholder("x", X)))[0]
        tf.identity(to_first(y), name="y")
        tf.identity(y, name="z")

    x = draw(rng, X)
    y = oracle("instance", x, last=False)
    after = check(trace(make), {"x": x}, {"y": y, "z": last(y)}, before=2, after=1)
    (fused,) = nodes(after, "FusedInstanceNorm")
    assert fused.attr["data_format"].s == b"NC..."


def test_mask_is_transposed_before_it_is_widened(rng):
    """dropout: 2 Transposes of floats, then one of the mask, which is a byte each."""

    def make():
        y = norm("instance", to_last(placeholder("x", X)))[0]
        mask = placeholder("mask", SHAPES[4], tf.bool)
        tf.identity(to_first(y * tf.cast(mask, tf.float32) * 1.25), name="y")

    x, mask = draw(rng, X), rng.random(SHAPES[4]) < 0.8
    y = oracle("instance", x, last=False) * first(mask) * 1.25
    after = check(trace(make), {"x": x, "mask": mask}, {"y": y}, before=2, after=1)
    (left,) = nodes(after, "Transpose")
    assert left.attr["T"].type == tf.bool.as_datatype_enum


@pytest.mark.parametrize("kind", NORMS)
def test_gradient_goes_along(kind, rng):
    """x, dy, y and dx channels first, ReLU between: 4 Transposes, then none."""
    gamma, beta = parameters(rng)

    def make():
        x = to_last(placeholder("x", X))
        g = tf.constant(gamma)
        y, *statistics = norm(kind, x, g, tf.constant(beta))
        z = tf.nn.relu(y)
        tf.identity(to_first(z), name="z")
        dy = tf.raw_ops.ReluGrad(gradients=to_last(placeholder("dz", X)), features=z)
        dx, dgamma, dbeta = norm_grad(kind, dy, x, g, statistics)
        tf.identity(to_first(dx), name="dx")
        tf.identity(dgamma, name="dgamma")
        tf.identity(dbeta, name="dbeta")

    x, dz = draw(rng, X), draw(rng, X)
    y = oracle(kind, last(x), gamma, beta)
    dy = np.where(y > 0, last(dz), 0)
    x_last, axes, along = last(x), {"instance": (1, 2)}.get(kind, (3,)), (3,)
    if kind == "group":
        split = (2, 5, 3, 2, 3)
        x_last, dy, axes, along = x_last.reshape(split), dy.reshape(split), (1, 2, 4), (3, 4)
    back = formulas.backward(dy, x_last, gamma, axes, along, EPSILON, subtract_mean=kind != "rms")
    expected = {
        "z": first(np.maximum(y, 0)),
        "dx": first(np.reshape(back.dx, SHAPES[4])),
        "dgamma": np.reshape(back.dgamma, 6),
        "dbeta": np.reshape(back.dbeta, 6),
    }
    after = check(trace(make), {"x": x, "dz": dz}, expected, before=4, after=0, tolerance=1e-4)
    attributes = [dict(n.attr) for n in after.node if n.op.startswith("Fused")]
    assert len(attributes) == 2
    if "data_format" in attributes[0]:
        assert [a["data_format"].s for a in attributes] == [b"NC..."] * 2


def test_pooled_features_need_no_transpose(rng):
    """Global average pooling after the norm: 1 Transpose, then none."""

    def make():
        y = norm("instance", to_last(placeholder("x", X)), tf.constant(gamma))[0]
        tf.identity(tf.reduce_mean(tf.nn.relu(y), [1, 2]), name="y")

    gamma, _ = parameters(rng)
    x = draw(rng, X)
    y = np.maximum(oracle("instance", x, gamma, last=False), 0).mean((2, 3))
    check(trace(make), {"x": x}, {"y": y}, before=1, after=0)


def _relu_and_sizes():
    x = placeholder("x", [None, 6, None, None])
    y = norm("layer", to_last(x))[0]
    tf.identity(tf.shape(y), name="sizes")
    tf.identity(to_first(tf.nn.relu(y)), name="y")


def test_unknown_batch_and_space(rng):
    x = draw(rng, X)
    expected = {"y": np.maximum(oracle("layer", x, last=False), 0), "sizes": SHAPES[4]}
    check(trace(_relu_and_sizes), {"x": x}, expected, before=2, after=0)


def test_vector_of_channels_that_is_a_shape_itself(rng):
    """It is turned with the tensor that it is the shape of, and then broadcast along axis 1."""

    def make():
        x = placeholder("x", [None, 4, None, None])
        y = tf.cast(norm("layer", to_last(x))[0] * 10.0, tf.int32)
        tf.identity(to_first(y * tf.shape(y)), name="y")

    x = draw(rng, (2, 4, 5, 3))
    y = np.trunc(10.0 * last(oracle("layer", x, last=False)))
    expected = {"y": first(y * np.array([2, 5, 3, 4]))}
    check(trace(make), {"x": x}, expected, before=2, after=0)


def test_order_that_waits_for_what_is_behind_the_norm(rng):
    """What the norm would read then waits for the norm."""

    def make():
        x = placeholder("x", X)
        y = tf.nn.relu(norm("layer", x, axis=[1])[0])
        with tf.control_dependencies([y]):
            order = tf.constant(TO_LAST[4])
        tf.identity(tf.transpose(x, order), name="turned")
        tf.identity(to_last(y), name="y")
        tf.identity(to_last(tf.tanh(y)), name="z")

    x = draw(rng, X)
    y = np.maximum(oracle("layer", x, last=False), 0)
    expected = {"turned": last(x), "y": last(y), "z": last(np.tanh(y))}
    check(trace(make), {"x": x}, expected, before=3, after=2)


def test_shape_that_no_fetch_needs(rng):
    x = draw(rng, X)
    rewritten, _ = nv_norms_rewriter.rewrite(trace(_relu_and_sizes), fetches=["y"])
    (got,) = run(rewritten, {"x": x}, ["y"])
    np.testing.assert_allclose(got, np.maximum(oracle("layer", x, last=False), 0), 2e-5, 2e-5)


def test_recognized_norm_moves_in_the_same_pass(rng):
    """Not an op of ours at first, but its textbook formula between Transposes."""

    def make():
        x = to_last(placeholder("x", X))
        mean, variance = tf.nn.moments(x, [1, 2], keepdims=True)
        y = (x - mean) * tf.math.rsqrt(variance + EPSILON)
        tf.identity(to_first(tf.nn.relu(y)), name="y")

    x = draw(rng, X)
    y = np.maximum(oracle("instance", x, last=False), 0)
    check(trace(make), {"x": x}, {"y": y}, before=2, after=0)


def test_parameters_are_read_before_their_transposes(rng):
    """gamma [1, 1, 1, C] to [1, C, 1, 1], as the layout pass leaves it: 2 Transposes, then none."""

    def make():
        x = placeholder("x", X)
        shape = [1, 1, 1, 6]
        gamma = to_first(tf.reshape(placeholder("gamma", [6]), shape))
        beta = to_first(tf.reshape(placeholder("beta", [6]), shape))
        tf.identity(norm("layer", x, gamma, beta, last=False)[0], name="y")

    gamma, beta = parameters(rng)
    x = draw(rng, X)
    y = oracle("layer", x, gamma, beta, last=False)
    feeds = {"x": x, "gamma": gamma, "beta": beta}
    check(trace(make), feeds, {"y": y}, before=2, after=0)


def test_gradients_of_parameters_are_read_before_their_transposes(rng):
    """dgamma [C] to [1, C, 1, 1], to [1, 1, 1, C], to [C]: 1 Transpose, then none."""

    def make():
        x, dy = placeholder("x", X), placeholder("dy", X)
        _, *statistics = norm("layer", x, last=False)
        _, dgamma, _ = norm_grad("layer", dy, x, None, statistics, last=False)
        tf.reshape(to_last(tf.reshape(dgamma, [1, 6, 1, 1])), [6], name="dgamma")

    x, dy = draw(rng, X), draw(rng, X)
    back = formulas.backward(dy, x, None, (1,), (1,), EPSILON)
    check(trace(make), {"x": x, "dy": dy}, {"dgamma": back.dgamma}, 1, 0, tolerance=1e-4)


def test_layer_norm_over_everything_without_parameters(rng):
    def make():
        y = norm("layer", to_last(placeholder("x", X)), axis=[1, 2, 3])[0]
        tf.identity(to_first(y), name="y")

    x = draw(rng, X)
    expected = {"y": oracle("layer", x, axis=[1, 2, 3])}
    check(trace(make), {"x": x}, expected, before=2, after=0)


def test_reduction_that_no_fetch_needs(rng):
    """Its axes have no type that the pass has asked for."""

    def make():
        y = tf.nn.relu(norm("instance", to_last(placeholder("x", X)))[0])
        tf.identity(to_first(y), name="y")
        tf.reduce_sum(y, [0, 1, 2, 3], name="loss")

    x = draw(rng, X)
    rewritten, _ = nv_norms_rewriter.rewrite(trace(make), fetches=["y"])
    (got,) = run(rewritten, {"x": x}, ["y"])
    np.testing.assert_allclose(got, np.maximum(oracle("instance", x, last=False), 0), 2e-5, 2e-5)


def test_sizes_that_multiply_to_more_than_can_be_counted():
    """The pass comes to an end; no such graph runs."""

    def make():
        y = norm("instance", to_last(placeholder("x", [None, 2**31 - 1, 2**31 - 1, None])))[0]
        tf.identity(to_first(tf.nn.relu(y)), name="y")

    rewritten, _ = nv_norms_rewriter.rewrite(trace(make), device="GPU", fetches=["y"])
    assert not nodes(rewritten, "Transpose")


@pytest.mark.parametrize("axes", ["constant", "joined"])
def test_inside_a_loop(axes, rng):
    """The Transposes and what takes their place are in the loop's frame."""
    v1 = tf.compat.v1

    def make():
        v1.disable_control_flow_v2()
        x = placeholder("x", X)

        def body(step, value):
            y = norm("instance", to_last(value))[0]
            of = [1, 2] if axes == "constant" else tf.concat([[1], [2]], 0)
            z = tf.reduce_max(y, of, keepdims=True)
            return step + 1, to_first(tf.nn.relu(y + z))

        y = v1.while_loop(lambda step, _: step < 2, body, (0, x))[1]
        tf.identity(y, name="y")
        v1.enable_control_flow_v2()

    x = draw(rng, X)
    y = x
    for _ in range(2):
        y = oracle("instance", y, last=False)
        y = np.maximum(y + y.max((2, 3), keepdims=True), 0)
    check(trace(make), {"x": x}, {"y": y}, before=2, after=0, tolerance=1e-4)


def test_report_names_what_went_and_what_moved():
    def make():
        y = norm("group", to_last(placeholder("x", X), name="there"), name="norm")[0]
        tf.identity(to_first(y, name="back"), name="y")

    _, report = nv_norms_rewriter.rewrite(trace(make), fetches=["y"])
    (record,) = layouts(report)
    assert record.fused and record.transposes == (2, 0) and record.direction == ""
    assert set(record.inputs) == {"there:0", "back:0"} and record.outputs == ("norm:0",)
    assert "2 Transposes removed" in report.summary()
    assert "0 Transposes instead of 2" in str(report)
