"""Layer and RMS norms with a scale and an offset of each sample, as diffusion transformers have
them: one op, whose parameters have gradients of their own. What only looks so stays beside it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from recognizer_graphs import fused_nodes, placeholder, run, trace

from fused_graphs import ops_behind
from nv_norms_rewriter import rewrite

EPSILON = 1e-3
BATCH, ROWS, CHANNELS = 3, (5, 4), 8
SHAPE, PARAM = (BATCH, *ROWS, CHANNELS), (BATCH, 1, 1, CHANNELS)

Norm = Callable[[tf.Tensor], tf.Tensor]


def layer_norm(x):
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + EPSILON)


def batch_normalization(x):
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, None, None, EPSILON)


def rms_norm(x):
    return x * tf.math.rsqrt(tf.reduce_mean(tf.square(x), -1, keepdims=True) + EPSILON)


NORMS = [layer_norm, batch_normalization, rms_norm]
GIVEN = [(True, True), (True, False), (False, True)]


def modulated(norm: Norm, x, scale, offset):
    y = norm(x)
    y = y if scale is None else y * (1.0 + scale)
    return y if offset is None else y + offset


def exact(values: dict[str, np.ndarray], norm: Norm, scaled: bool, shifted: bool):
    x, dy, scale, offset = (values[k].astype(np.float64) for k in ("x", "dy", "scale", "offset"))
    scale = 1 + scale if scaled else np.ones(1)
    center = norm is not rms_norm
    e = x - x.mean(-1, keepdims=True) if center else x
    rstd = 1 / np.sqrt((e**2).mean(-1, keepdims=True) + EPSILON)
    xhat, w = e * rstd, dy * scale
    within = w - xhat * (w * xhat).mean(-1, keepdims=True)
    return {
        "y": xhat * scale + (offset if shifted else 0),
        "dx": rstd * (within - (w.mean(-1, keepdims=True) if center else 0)),
        "dscale": (dy * xhat).sum((1, 2), keepdims=True),
        "doffset": dy.sum((1, 2), keepdims=True),
    }


def graph_of(norm: Norm, scaled: bool, shifted: bool, batches: list[int | None]):
    """y and the gradients of all; batches: of x and dy, and of the parameters."""

    def make() -> None:
        x, dy = (placeholder(name, (batches[0], *SHAPE[1:])) for name in ("x", "dy"))
        scale, offset = (placeholder(n, (batches[1], *PARAM[1:])) for n in ("scale", "offset"))
        given = {"scale": scale} if scaled else {}
        given |= {"offset": offset} if shifted else {}
        y = modulated(norm, x, given.get("scale"), given.get("offset"))
        tf.identity(y, name="y")
        gradients = tf.gradients(y, [x, *given.values()], grad_ys=dy)
        for name, value in zip(["x", *given], gradients, strict=True):
            tf.identity(value, name=f"d{name}")

    return trace(make)


def feeds(rng: np.random.Generator) -> dict[str, np.ndarray]:
    shapes = {"x": SHAPE, "dy": SHAPE, "scale": PARAM, "offset": PARAM}
    return {name: rng.normal(0.5, 2.0, shape).astype("f") for name, shape in shapes.items()}


def check(graph, rng, norm: Norm, scaled: bool, shifted: bool):
    names = ["y", "dx", *["dscale"] * scaled, *["doffset"] * shifted]
    after, report = rewrite(graph, fetches=names)
    values = feeds(rng)
    expected = exact(values, norm, scaled, shifted)
    for name in names:
        stock, got = (run(each, values, f"{name}:0") for each in (graph, after))
        assert got.shape == stock.shape
        tolerance = 2e-5 * np.abs(expected[name]).max()
        np.testing.assert_allclose(stock, expected[name], 1e-4, tolerance, err_msg="stock")
        np.testing.assert_allclose(got, expected[name], 1e-4, tolerance, err_msg=name)
    return after, report


@pytest.mark.sampled(3)
@pytest.mark.parametrize("given", GIVEN, ids=str)
@pytest.mark.parametrize("norm", NORMS, ids=lambda n: n.__name__)
@pytest.mark.parametrize("batches", [[3, 3], [None, None], [None, 3], [3, None]], ids=str)
def test_norm_and_its_gradients_are_one_op_each(rng, batches, norm, given) -> None:
    if batches == [None, 3] and given == (False, True):
        pytest.skip("x, which alone makes y as large as it is, has fewer samples than dy perhaps")
    after, report = check(graph_of(norm, *given, batches), rng, norm, *given)
    assert sorted(r.direction for r in report.fused) == ["backward", "forward"], report
    assert not report.refused
    kind = "FusedRMSNorm" if norm is rms_norm else "FusedLayerNorm"
    (node,) = fused_nodes(after)
    (gradient,) = (n for n in after.node if n.op == f"{kind}Grad")
    assert node.op == kind and node.attr["per_sample"].b and gradient.attr["per_sample"].b
    scaled, shifted = given
    assert node.attr["num_scale"].i == scaled and node.attr["num_offset"].i == shifted
    assert gradient.attr["num_dscale"].i == scaled and gradient.attr["num_doffset"].i == shifted
    names = ["y", "dx", *["dscale"] * scaled, *["doffset"] * shifted]
    computing = sorted(
        {"Mul", "Sub", "AddV2", "AddN", "RealDiv", "Rsqrt"} & ops_behind(after, names)
    )
    assert computing == ["AddV2"] * scaled  # 1 + scale


@pytest.mark.parametrize("one", ["x", "scale", "offset"])
def test_one_sample_that_stands_for_many(rng, one: str) -> None:
    """Of a batch whose size is not known while tracing."""
    graph = graph_of(layer_norm, True, True, [None, None])
    names = ["y", "dx", "dscale", "doffset"]
    after, _ = rewrite(graph, fetches=names)
    values = feeds(rng)
    values[one] = values[one][:1]
    for name in names:
        stock, got = (run(each, values, f"{name}:0") for each in (graph, after))
        assert got.shape == stock.shape
        np.testing.assert_allclose(got, stock, 1e-4, 2e-5 * np.abs(stock).max(), err_msg=name)


@pytest.mark.parametrize("norm", NORMS, ids=lambda n: n.__name__)
def test_scale_that_is_computed_after_the_norm_goes_in(rng, norm: Norm) -> None:
    """A network's first norms stand before the end of what computes their scale and offset."""

    def make() -> None:
        x, dy, late = placeholder("x", SHAPE), placeholder("dy", SHAPE), placeholder("scale", PARAM)
        for _ in range(20):
            late = tf.tanh(late)
        late = tf.identity(late, name="late")
        tf.identity(y := modulated(norm, x, late, late), name="y")
        dx, dlate = tf.gradients(y, [x, late], grad_ys=dy)
        tf.identity(dx, name="dx")
        tf.identity(dlate, name="dlate")

    graph = trace(make)
    values = {"scale": feeds(rng)["scale"]}
    values |= {name: feeds(rng)[name] for name in ("x", "dy")}
    late = run(graph, {"scale": values["scale"]}, "late:0")
    expected = exact(values | {"scale": late, "offset": late}, norm, True, True)
    expected["dlate"] = expected["dscale"] + expected["doffset"]
    after, report = rewrite(graph, fetches=["y", "dx", "dlate"])
    assert sorted(r.direction for r in report.fused) == ["backward", "forward"], report
    (node,) = fused_nodes(after)
    assert node.attr["num_scale"].i == node.attr["num_offset"].i == 1
    for name in ("y", "dx", "dlate"):
        tolerance = 2e-5 * np.abs(expected[name]).max()
        np.testing.assert_allclose(run(after, values, f"{name}:0"), expected[name], 1e-4, tolerance)


@pytest.mark.parametrize("steps", [1, 1000])
@pytest.mark.parametrize("norm", NORMS, ids=lambda n: n.__name__)
def test_scale_that_is_computed_from_the_norm_stays_beside(rng, norm: Norm, steps: int) -> None:
    """Through an op that the search for norms does not follow."""

    def make() -> None:
        y = norm(placeholder("x", SHAPE))
        scale = tf.einsum("nabc,cd->nabd", y, tf.eye(CHANNELS))[:, :1, :1]
        for _ in range(steps):
            scale = tf.tanh(scale)
        tf.identity(y * (1.0 + scale), name="y")

    graph = trace(make)
    after, report = rewrite(graph, fetches=["y"])
    assert len(report.fused) == 1
    (node,) = fused_nodes(after)
    assert node.attr["num_scale"].i == 0
    values = {"x": rng.normal(0.5, 2.0, SHAPE).astype("f")}
    stock, got = (run(each, values) for each in (graph, after))
    np.testing.assert_allclose(got, stock, 1e-4, 1e-4)


BESIDE = {
    "of each sample and row": (BATCH, ROWS[0], 1, CHANNELS),
    "of each element": SHAPE,
    "of each sample": (BATCH, 1, 1, 1),
    "of each row of all samples, and channel": (1, ROWS[0], 1, CHANNELS),
}


@pytest.mark.parametrize("shape", BESIDE.values(), ids=BESIDE)
@pytest.mark.parametrize("norm", NORMS, ids=lambda n: n.__name__)
def test_other_scales_stay_beside_the_op(rng, norm: Norm, shape: tuple[int, ...]) -> None:
    def make() -> None:
        x, scale = placeholder("x", SHAPE), placeholder("scale", shape)
        tf.identity(norm(x) * scale, name="y")

    graph = trace(make)
    after, _ = rewrite(graph, fetches=["y"])
    for node in fused_nodes(after):
        assert not node.attr["per_sample"].b and node.attr["num_scale"].i == 0
    values = {"x": rng.normal(0.5, 2.0, SHAPE).astype("f")}
    values["scale"] = rng.normal(0.5, 2.0, shape).astype("f")
    stock, got = (run(each, values) for each in (graph, after))
    np.testing.assert_allclose(got, stock, 1e-4, 1e-4)


@pytest.mark.parametrize("axes", [[1], [1, 3], [2]], ids=str)
def test_other_axes_than_the_last_keep_their_scale_beside(rng, axes: list[int]) -> None:
    param = tuple(n if a in [0, *axes] else 1 for a, n in enumerate(SHAPE))

    def make() -> None:
        x, scale = placeholder("x", SHAPE), placeholder("scale", param)
        mean, variance = tf.nn.moments(x, axes, keepdims=True)
        y = (x - mean) * tf.math.rsqrt(variance + EPSILON)
        tf.identity(y * scale, name="y")

    graph = trace(make)
    after, _ = rewrite(graph, fetches=["y"])
    for node in fused_nodes(after):
        assert not node.attr["per_sample"].b
    values = {"x": rng.normal(0.5, 2.0, SHAPE).astype("f")}
    values["scale"] = rng.normal(0.5, 2.0, param).astype("f")
    stock, got = (run(each, values) for each in (graph, after))
    np.testing.assert_allclose(got, stock, 1e-4, 1e-4)


@pytest.mark.parametrize("known", [True, False])
def test_rows_of_unknown_number(rng, known: bool) -> None:
    """Sequences of any length, batches of any size; of a length of one, too."""

    def make() -> None:
        x = placeholder("x", (BATCH if known else None, None, CHANNELS))
        scale = placeholder("scale", (BATCH if known else None, 1, CHANNELS))
        tf.identity(layer_norm(x) * scale, name="y")

    graph = trace(make)
    after, report = rewrite(graph, fetches=["y"])
    assert len(report.fused) == 1 and fused_nodes(after)[0].attr["per_sample"].b
    for rows in (1, 6):
        values = {"x": rng.normal(0.5, 2.0, (BATCH, rows, CHANNELS)).astype("f")}
        values["scale"] = rng.normal(0.5, 2.0, (BATCH, 1, CHANNELS)).astype("f")
        stock, got = (run(each, values) for each in (graph, after))
        np.testing.assert_allclose(got, stock, 1e-4, 1e-4)
