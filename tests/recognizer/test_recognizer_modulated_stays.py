"""What only looks like a norm that is scaled and shifted for each sample, or whose inner values
others need, stays beside the op; and what must be kept of one that goes in."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from modulated_norms import (
    AFFINE,
    BATCH,
    BOTH,
    CHANNELS,
    PARAM,
    ROWS,
    SHAPE,
    Norm,
    assert_taken_in,
    compare,
    exact,
    feeds,
    group_norm,
    layer_norm,
    modulated,
    rms_norm,
    shapes,
)
from recognizer_graphs import fused_nodes, placeholder, run, trace

from nv_norms_rewriter import rewrite

v1 = tf.compat.v1


@pytest.mark.parametrize("device", ["/device:GPU:0", "/device:CPU:0"])
@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("rows", [64, 4096])
def test_small_norms_that_are_trained_on_a_gpu_stay(rows: int, trained: bool, device: str) -> None:
    """The few numbers' ops would take longer there. What is rewritten does not run here."""

    def make() -> None:
        x = placeholder("x", (16, rows, 64))
        scale = placeholder("scale", (16, 1, 64))
        y = layer_norm(x) * placeholder("gamma", (64,)) * scale
        tf.identity(y, name="y")
        dy = placeholder("dy", (16, rows, 64))
        for name, value in zip("xs", tf.gradients(y, [x, scale], grad_ys=dy), strict=True):
            tf.identity(value, name=f"d{name}")

    after, _ = rewrite(trace(make), device, ["y", *["dx", "ds"] * trained])
    stays = device == "/device:GPU:0" and trained and rows == 64
    assert one_norm(after) is not stays


def one_norm(after) -> bool:
    """Whether the only norm has parameters of each sample."""
    (node,) = fused_nodes(after)
    return node.attr["per_sample"].b


BESIDE = {
    "of each sample and row": (BATCH, ROWS[0], 1, CHANNELS),
    "of each element": SHAPE,
    "of each sample": (BATCH, 1, 1, 1),
    "of each row of all samples, and channel": (1, ROWS[0], 1, CHANNELS),
    "of one sample": (1, 1, 1, CHANNELS),
    "without samples": (1, 1, CHANNELS),
}


@pytest.mark.parametrize("shape", BESIDE.values(), ids=BESIDE)
@pytest.mark.parametrize("norm", [rms_norm, group_norm], ids=lambda n: n.__name__)
def test_other_scales_stay_beside_the_op(rng, norm: Norm, shape: tuple[int, ...]) -> None:
    def make() -> None:
        x, scale = placeholder("x", SHAPE), placeholder("scale", shape)
        given = {name: placeholder(name, (CHANNELS,)) for name in AFFINE}
        tf.identity(modulated(norm, x, given | {"scale": scale}), name="y")

    graph = trace(make)
    after, _ = rewrite(graph, fetches=["y"])
    assert not one_norm(after)
    values = feeds(rng, norm, AFFINE)
    values["scale"] = rng.normal(0.5, 2.0, shape).astype("f")
    del values["dy"]
    stock, got = (run(each, values) for each in (graph, after))
    np.testing.assert_allclose(got, stock, 1e-4, 1e-4)


def second_reader(y: tf.Tensor, product: tf.Tensor) -> tf.Tensor:
    return tf.exp(-tf.square(y))


def second_scale(y: tf.Tensor, product: tf.Tensor) -> tf.Tensor:
    return y * placeholder("other", PARAM)


def gate(y: tf.Tensor, product: tf.Tensor) -> tf.Tensor:
    return y * tf.sigmoid(product)


@pytest.mark.parametrize("other", [second_reader, second_scale, gate], ids=lambda f: f.__name__)
def test_y_that_others_read_stays(rng, other) -> None:
    def make() -> None:
        x = placeholder("x", SHAPE)
        given = {name: placeholder(name, shapes(group_norm)[name]) for name in (*AFFINE, "scale")}
        y = modulated(group_norm, x, {name: given[name] for name in AFFINE})
        product = y * given["scale"]
        tf.identity(product, name="y")
        tf.identity(other(y, product), name="z")

    graph = trace(make)
    after, _ = rewrite(graph, fetches=["y", "z"])
    assert not one_norm(after)
    values = feeds(rng, group_norm, (*AFFINE, "scale"))
    del values["dy"]
    if other is second_scale:
        values["other"] = rng.normal(size=PARAM).astype("f")
    for name in "yz":
        stock, got = (run(each, values, f"{name}:0") for each in (graph, after))
        np.testing.assert_allclose(got, stock, 1e-4, 1e-4)


def test_y_that_is_fetched_stays() -> None:
    def make() -> None:
        given = {name: placeholder(name, shapes(rms_norm)[name]) for name in (*AFFINE, *BOTH)}
        x = placeholder("x", SHAPE)
        y = rms_norm(x) * given["gamma"]
        y = tf.add(y, given["beta"], name="affine")
        tf.identity(y * given["scale"] + given["offset"], name="y")

    after, _ = rewrite(trace(make), fetches=["y", "affine"])
    assert not one_norm(after)


def test_product_that_others_read_is_the_result(rng) -> None:
    def make() -> None:
        given = {name: placeholder(name, shapes(group_norm)[name]) for name in (*AFFINE, *BOTH)}
        x = placeholder("x", SHAPE)
        y = modulated(group_norm, x, {name: given[name] for name in (*AFFINE, "scale")})
        tf.identity(y, name="product")
        tf.identity(y + given["offset"], name="y")

    graph = trace(make)
    after, _ = rewrite(graph, fetches=["y", "product"])
    (node,) = fused_nodes(after)
    assert node.attr["per_sample"].b
    values = feeds(rng, group_norm, (*AFFINE, *BOTH))
    expected = exact(group_norm, values)["y"]
    del values["dy"]
    np.testing.assert_allclose(run(after, values), expected, 1e-4, 1e-4)
    product = expected - values["offset"]
    np.testing.assert_allclose(run(after, values, "product:0"), product, 1e-4, 1e-4)


@pytest.mark.parametrize("one", ["", "x", "scale"])
@pytest.mark.parametrize("batch", [BATCH, None])
def test_shapes_of_what_goes_stay_readable(rng, batch: int | None, one: str) -> None:
    def make() -> None:
        x = placeholder("x", (batch, *SHAPE[1:]))
        given = {name: placeholder(name, shapes(group_norm)[name]) for name in AFFINE}
        given |= {name: placeholder(name, (batch, *PARAM[1:])) for name in BOTH}
        y = modulated(group_norm, x, {name: given[name] for name in AFFINE})
        product = y * given["scale"]
        tf.identity(product + given["offset"], name="y")
        tf.identity(tf.raw_ops.Shape(input=y), name="of_y")
        tf.identity(tf.raw_ops.Shape(input=product), name="of_product")

    graph = trace(make)
    after, _ = rewrite(graph, fetches=["y", "of_y", "of_product"])
    assert one_norm(after)
    values = feeds(rng, group_norm, (*AFFINE, *BOTH))
    del values["dy"]
    if batch is None and one:
        values[one] = values[one][:1]
    for name in ("y", "of_y", "of_product"):
        stock, got = (run(each, values, f"{name}:0") for each in (graph, after))
        np.testing.assert_allclose(got, stock, 1e-4, 1e-4)


@pytest.mark.parametrize("resource", [True, False])
@pytest.mark.parametrize("trained", [True, False])
def test_beta_that_an_optimizer_writes_in_place_stays(trained: bool, resource: bool) -> None:
    """The scale's gradient would read beta later than the graph did."""

    def make() -> None:
        x = placeholder("x", SHAPE)
        given = {name: placeholder(name, shapes(group_norm)[name]) for name in ("gamma", *BOTH)}
        with v1.variable_scope("", use_resource=resource):
            given["beta"] = v1.get_variable("beta", (CHANNELS,))
        y = modulated(group_norm, x, given)
        tf.identity(y, name="y")
        if trained:
            dy = placeholder("dy", SHAPE)
            dx, dscale = tf.gradients(y, [x, given["scale"]], grad_ys=dy)
            tf.identity(dx, name="dx")
            tf.identity(dscale, name="dscale")

    after, _ = rewrite(trace(make), fetches=["y", *["dx", "dscale"] * trained])
    assert one_norm(after) is (resource or not trained)


def test_scale_that_is_computed_from_y_stays_beside(rng) -> None:
    """By what reads the norm's statistics alone: its gradient."""

    def make() -> None:
        x, dy = placeholder("x", SHAPE), placeholder("dy", SHAPE)
        gamma = placeholder("gamma", (CHANNELS,))
        y = layer_norm(x) * gamma
        (dx,) = tf.gradients(y, [x], grad_ys=dy)
        scale = tf.reduce_mean(dx, [1, 2], keepdims=True)
        tf.identity(y * scale, name="y")

    graph = trace(make)
    after, _ = rewrite(graph, fetches=["y"])
    assert not one_norm(after)
    values = feeds(rng, layer_norm, ("gamma",))
    stock, got = (run(each, values) for each in (graph, after))
    np.testing.assert_allclose(got, stock, 1e-4, 1e-4)


def test_gradients_of_two_losses(rng) -> None:
    def make() -> None:
        x = placeholder("x", SHAPE)
        given = {name: placeholder(name, shapes(group_norm)[name]) for name in (*AFFINE, *BOTH)}
        y = modulated(group_norm, x, given)
        tf.identity(y, name="y")
        for i in range(2):
            dy = placeholder(f"dy{i}", SHAPE)
            gradients = tf.gradients(y, [x, *given.values()], grad_ys=dy)
            for name, value in zip(["x", *given], gradients, strict=True):
                tf.identity(value, name=f"d{name}{i}")

    graph = trace(make)
    given = (*AFFINE, *BOTH)
    names = ["y", *(f"d{name}{i}" for i in range(2) for name in ("x", *given))]
    after, report = rewrite(graph, fetches=names)
    assert [r.direction for r in report.fused].count("backward") == 2
    assert one_norm(after)
    values = feeds(rng, group_norm, given)
    values |= {f"dy{i}": rng.normal(size=SHAPE).astype("f") for i in range(2)}
    del values["dy"]
    for i in range(2):
        one = {name: value for name, value in values.items() if name[:2] != "dy"}
        expected = exact(group_norm, one | {"dy": values[f"dy{i}"]})
        for name in ("x", *given):
            got = run(after, values, f"d{name}{i}:0")
            largest = 2e-5 * np.abs(expected[f"d{name}"]).max()
            np.testing.assert_allclose(got, expected[f"d{name}"], 2e-5, largest, err_msg=name)


@pytest.mark.parametrize("batch", [BATCH, None])
def test_sums_over_other_axes_stay(rng, batch) -> None:
    """A sum of dy * y over the samples, too, is the gradient of something else."""

    def make() -> None:
        x, dy = placeholder("x", SHAPE), placeholder("dy", SHAPE)
        given = {name: placeholder(name, shapes(group_norm)[name]) for name in (*AFFINE, "scale")}
        affine = modulated(group_norm, x, {name: given[name] for name in AFFINE})
        y = affine * given["scale"]
        tf.identity(y, name="y")
        (dx,) = tf.gradients(y, [x], grad_ys=dy)
        tf.identity(dx, name="dx")
        tf.reduce_sum(affine * dy, [0, 1, 2], name="sums")

    graph = trace(make)
    after, _ = rewrite(graph, fetches=["y", "dx", "sums"])
    assert not one_norm(after)
    values = feeds(rng, group_norm, (*AFFINE, "scale"))
    for name in ("y", "dx", "sums"):
        stock, got = (run(each, values, f"{name}:0") for each in (graph, after))
        np.testing.assert_allclose(got, stock, 1e-4, 1e-4 * np.abs(stock).max())


def waits_for(after, name: str, check: str) -> bool:
    nodes = {node.name: node for node in after.node}
    waiting, seen = [name], {name}
    while waiting:
        sources = {i.lstrip("^").split(":")[0] for i in nodes[waiting.pop()].input} - seen
        seen |= sources
        waiting += sources
    return check in seen


@pytest.mark.parametrize("batch", [BATCH, None])
def test_gradients_still_wait_for_what_they_waited_for(rng, batch) -> None:
    given = (*AFFINE, *BOTH)

    def make() -> None:
        def tensor(name: str) -> tf.Tensor:
            shape = shapes(group_norm)[name]
            return placeholder(name, shape if name in AFFINE else (batch, *shape[1:]))

        x, dy = tensor("x"), tensor("dy")
        parameters = {name: tensor(name) for name in given}
        y = modulated(group_norm, x, parameters)
        tf.identity(y, name="y")
        with tf.control_dependencies([tf.no_op(name="check")]):
            gradients = tf.gradients(y, [x, *parameters.values()], grad_ys=dy)
        for name, value in zip(["x", *parameters], gradients, strict=True):
            tf.identity(value, name=f"d{name}")

    graph = trace(make)
    gradients = ["dx", *(f"d{name}" for name in given)]
    after, report = rewrite(graph, fetches=["y", *gradients])
    assert_taken_in(after, report, group_norm)
    assert [waits_for(after, name, "check") for name in ["y", *gradients]] == [False] + [True] * 5
    values = feeds(rng, group_norm, given)
    compare(graph, after, values, ["y", *gradients], exact(group_norm, values), 2e-5)


def test_norm_that_waits_less_than_its_modulation_stays(rng) -> None:
    def make() -> None:
        given = {name: placeholder(name, shapes(group_norm)[name]) for name in (*AFFINE, *BOTH)}
        x = placeholder("x", SHAPE)
        y = modulated(group_norm, x, {name: given[name] for name in AFFINE})
        with tf.control_dependencies([tf.no_op(name="check")]):
            y = y * given["scale"] + given["offset"]
        tf.identity(y, name="y")

    graph = trace(make)
    after, _ = rewrite(graph, fetches=["y"])
    assert not one_norm(after) and waits_for(after, "y", "check")
