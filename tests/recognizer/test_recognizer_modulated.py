"""Norms with a gamma and a beta that are then scaled and shifted for each sample, as guided
diffusion and FiLM do: one op, forward and backward."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from modulated_norms import (
    AFFINE,
    BATCH,
    BOTH,
    NORMS,
    PARAM,
    SHAPE,
    Norm,
    assert_taken_in,
    compare,
    exact,
    feeds,
    graph_of,
    group_norm,
    instance_norm,
    instance_norm_first,
    large_ops,
    layer_norm,
    layer_norm_of_two_axes,
    modulated,
    rms_norm,
    shapes,
)
from recognizer_graphs import fused_nodes, placeholder, run, trace

from nv_norms_rewriter import rewrite

GIVEN = [
    (*AFFINE, *BOTH),
    ("gamma", *BOTH),
    ("beta", *BOTH),
    (*AFFINE, "scale"),
    (*AFFINE, "offset"),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("batch", [BATCH, None])
@pytest.mark.parametrize("given", GIVEN, ids="-".join)
@pytest.mark.parametrize("norm", NORMS, ids=lambda n: n.__name__)
def test_norm_and_its_gradients_are_one_op_each(rng, norm, given, batch) -> None:
    graph = graph_of(norm, given, batch)
    names = ["y", "dx", *(f"d{name}" for name in given)]
    after, report = rewrite(graph, fetches=names)
    assert_taken_in(after, report, norm)
    if norm is not instance_norm_first:
        assert not large_ops(after, names)
    values = feeds(rng, norm, given)
    compare(graph, after, values, names, exact(norm, values), 2e-5)


def test_several_axes(rng) -> None:
    norm, given = layer_norm_of_two_axes, (*AFFINE, *BOTH)
    graph = graph_of(norm, given)
    names = ["y", "dx", *(f"d{name}" for name in given)]
    after, report = rewrite(graph, fetches=names)
    assert_taken_in(after, report, norm)
    values = feeds(rng, norm, given)
    compare(graph, after, values, names, exact(norm, values), 2e-5)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float64], ids=lambda t: t.name)
@pytest.mark.parametrize("norm", [layer_norm, group_norm], ids=lambda n: n.__name__)
def test_types(rng, norm: Norm, dtype) -> None:
    given = (*AFFINE, *BOTH)
    graph = graph_of(norm, given, dtype=dtype)
    names = ["y", "dx", *(f"d{name}" for name in given)]
    after, report = rewrite(graph, fetches=names)
    assert_taken_in(after, report, norm)
    values = feeds(rng, norm, given, dtype.as_numpy_dtype)
    tolerance = {tf.float16: 2e-3, tf.bfloat16: 1.6e-2, tf.float64: 1e-12}[dtype]
    compare(graph, after, values, names, exact(norm, values), tolerance)


@pytest.mark.parametrize("one", ["x", "scale", "offset", "x scale", "scale offset"])
@pytest.mark.parametrize("norm", [layer_norm, instance_norm, group_norm], ids=lambda n: n.__name__)
def test_one_sample_that_stands_for_many(rng, norm: Norm, one: str) -> None:
    """Of a batch whose size is not known while tracing."""
    given = (*AFFINE, *BOTH)
    graph = graph_of(norm, given, None)
    names = ["y", "dx", *(f"d{name}" for name in given)]
    after, report = rewrite(graph, fetches=names)
    assert_taken_in(after, report, norm)
    values = feeds(rng, norm, given)
    values |= {name: values[name][:1] for name in one.split()}
    for name in names:
        stock, got = (run(each, values, f"{name}:0") for each in (graph, after))
        assert got.shape == stock.shape, name
        np.testing.assert_allclose(got, stock, 1e-4, 3e-5 * np.abs(stock).max(), err_msg=name)


@pytest.mark.parametrize("wanted", ["y", "y dx", "y dscale dx", "y dx doffset", "dgamma dbeta y"])
@pytest.mark.parametrize("norm", [rms_norm, group_norm], ids=lambda n: n.__name__)
def test_some_of_the_gradients(rng, norm: Norm, wanted: str) -> None:
    given, names = (*AFFINE, *BOTH), wanted.split()
    graph = graph_of(norm, given)
    after, _ = rewrite(graph, fetches=names)
    (node,) = fused_nodes(after)
    assert node.attr["per_sample"].b
    values = feeds(rng, norm, given)
    compare(graph, after, values, names, exact(norm, values), 2e-5)


@pytest.mark.parametrize(
    "activation", [tf.nn.relu, lambda y: y * tf.sigmoid(y)], ids=["relu", "silu"]
)
def test_activation_behind_it_goes_in_on_a_gpu(rng, activation) -> None:
    """What is rewritten for a GPU runs here on a CPU."""
    given = (*AFFINE, *BOTH)
    silu = activation is not tf.nn.relu

    def make() -> None:
        x, dy = (placeholder(name, (None, *SHAPE[1:])) for name in ("x", "dy"))
        parameters = {name: placeholder(name, shapes(group_norm)[name]) for name in AFFINE}
        parameters |= {name: placeholder(name, (None, *PARAM[1:])) for name in BOTH}
        y = activation(modulated(group_norm, x, parameters))
        tf.identity(y, name="y")
        if silu:  # whose gradient TensorFlow writes so only in Keras
            return
        gradients = tf.gradients(y, [x, *parameters.values()], grad_ys=dy)
        for name, value in zip(["x", *parameters], gradients, strict=True):
            tf.identity(value, name=f"d{name}")

    graph = trace(make)
    names = ["y"] if silu else ["y", "dx", *(f"d{name}" for name in given)]
    after, report = rewrite(graph, "/device:GPU:0", names)
    (node,) = fused_nodes(after)
    assert node.attr["per_sample"].b
    assert (node.attr["silu"].b, node.attr["negative_slope"].f) == (silu, float(silu))
    inside = {r.direction for r in report.fused if r.silu or r.negative_slope == 0}
    assert inside == ({"forward"} if silu else {"forward", "backward"})
    values = feeds(rng, group_norm, given)
    for name in names:
        stock, got = (run(each, values, f"{name}:0") for each in (graph, after))
        np.testing.assert_allclose(got, stock, 1e-4, 3e-5 * np.abs(stock).max(), err_msg=name)


@pytest.mark.parametrize("samples", [0, 1])
def test_few_samples(rng, samples: int) -> None:
    given = (*AFFINE, *BOTH)
    graph = graph_of(group_norm, given, None)
    names = ["y", "dx", *(f"d{name}" for name in given)]
    after, _ = rewrite(graph, fetches=names)
    values = feeds(rng, group_norm, given)
    values |= {name: values[name][:samples] for name in ("x", "dy", *BOTH)}
    for name in names:
        stock, got = (run(each, values, f"{name}:0") for each in (graph, after))
        assert got.shape == stock.shape, name
        largest = 3e-5 * np.abs(stock).max(initial=0)
        np.testing.assert_allclose(got, stock, 1e-4, largest, err_msg=name)


def test_casts_beside_it_go_in(rng) -> None:
    """The norm in float32, scale and offset in float16, behind that float32 again."""

    def make() -> None:
        x = placeholder("x", SHAPE)
        given = {name: placeholder(name, shapes(group_norm)[name]) for name in AFFINE}
        y = tf.cast(modulated(group_norm, x, given), tf.float16)
        scale, offset = (placeholder(name, PARAM, tf.float16) for name in BOTH)
        tf.identity(tf.cast(y * scale + offset, tf.float32), name="y")

    graph = trace(make)
    after, _ = rewrite(graph, fetches=["y"])
    (node,) = fused_nodes(after)
    assert node.attr["per_sample"].b
    assert node.attr["T"].type == node.attr["out_type"].type == tf.float32
    values = feeds(rng, group_norm, (*AFFINE, *BOTH))
    values |= {name: values[name].astype(np.float16) for name in BOTH}
    expected = exact(group_norm, values)["y"]
    del values["dy"]
    np.testing.assert_allclose(run(after, values), expected, 1e-4, 1e-4)
