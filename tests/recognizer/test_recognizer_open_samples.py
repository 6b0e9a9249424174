"""A scale and an offset of each sample where the batches' sizes are unknown while tracing: x or a
parameter may have one sample when the graph runs, and everything is broadcast as in stock
TensorFlow. Scales that are not understood so stay beside the op."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf
from recognizer_graphs import fused_nodes, placeholder, run, trace
from test_recognizer_per_sample import CHANNELS, SPACE, batch_normalization, ops, plain, scale_first

from fused_graphs import ops_behind
from nv_norms_rewriter import rewrite

N = 3
# Which of x, the scale and the offset have one sample.
SAMPLES = [s for s in itertools.product((N, 1), repeat=3) if s != (1, 1, 1)]
NORMS = [plain, batch_normalization, scale_first]


def _graph(
    norm=plain, last=True, groups=CHANNELS, batches=(None, None, None), flat=False, residual=False,
    scaled=True, shifted=True, gradients=("dx", "dscale", "doffset"),
):  # fmt: skip
    """y of a norm, whose parameters come as [N, C], and its gradients."""
    middle = (1, 1, CHANNELS) if last else (CHANNELS, 1, 1)
    shape = (*SPACE, CHANNELS) if last else (CHANNELS, *SPACE)
    split = (groups, CHANNELS // groups)

    def make() -> None:
        x = placeholder("x", (batches[0], *shape))
        given = {
            name: placeholder(name, (batch, CHANNELS))
            for name, batch in zip(("scale", "offset"), batches[1:], strict=True)
        }
        params = [
            tf.reshape(given[name], [-1, *middle]) if wanted else None
            for name, wanted in (("scale", scaled), ("offset", shifted))
        ]
        if groups == CHANNELS:
            y = norm(x, *params, [1, 2] if last else [2, 3])
        else:
            of_params = [-1, 1, 1, *split] if last else [-1, *split, 1, 1]
            of_x = [-1, *SPACE, *split] if last else [-1, *split, *SPACE]
            params = [None if p is None else tf.reshape(p, of_params) for p in params]
            y = norm(tf.reshape(x, of_x), *params, [1, 2, 4] if last else [2, 3, 4])
            y = tf.reshape(y, [-1, *shape])
        if residual:
            y = y + placeholder("residual", (None, *shape))
        y = tf.identity(y, name="y")
        dy = placeholder("dy", y.shape)
        wanted = {"dx": x}
        wanted |= {"dscale": given["scale"]} if scaled else {}
        wanted |= {"doffset": given["offset"]} if shifted else {}
        wanted = {name: wanted[name] for name in gradients if name in wanted}
        if not wanted:
            return
        values = tf.gradients(y, list(wanted.values()), grad_ys=dy)
        for name, value in zip(wanted, values, strict=True):
            tf.identity(value, name=name)

    return trace(make), shape


def _feeds(rng, shape, samples, residual=None):
    n = max(*samples, residual or 1)
    shapes = {"x": (samples[0], *shape), "scale": (samples[1], CHANNELS)}
    shapes |= {"offset": (samples[2], CHANNELS), "dy": (n, *shape)}
    if residual:
        shapes["residual"] = (residual, *shape)
    return {name: rng.normal(0.5, 2.0, s).astype("f") for name, s in shapes.items()}


def _exact(feeds, last, groups, scaled=True, shifted=True):
    """By the formulas in float64, summed as broadcasting has it."""
    x, dy, scale, offset = (feeds[n].astype(np.float64) for n in ("x", "dy", "scale", "offset"))
    n = dy.shape[0]
    if not last:
        x, dy = (np.moveaxis(v, 1, -1) for v in (x, dy))
    full = np.broadcast_to(x, dy.shape)
    view = (n, *SPACE, groups, CHANNELS // groups)

    def mean(value):
        m = value.reshape(view).mean((1, 2, 4), keepdims=True)
        return np.broadcast_to(m, view).reshape(dy.shape)

    rstd = 1 / np.sqrt(mean((full - mean(full)) ** 2) + 1e-3)
    xhat = (full - mean(full)) * rstd
    gamma = scale[:, None, None] if scaled else np.ones(1)
    w = dy * gamma
    dx = rstd * (w - mean(w) - xhat * mean(w * xhat))
    y = xhat * gamma + (offset[:, None, None] if shifted else 0)
    out = {"y": y, "dx": dx.sum(0, keepdims=True) if x.shape[0] < n else dx}
    for name, value, given in (("dscale", dy * xhat, scale), ("doffset", dy, offset)):
        d = value.sum((1, 2))
        out[name] = d.sum(0, keepdims=True) if given.shape[0] < n else d
    if not last:
        out |= {name: np.moveaxis(out[name], -1, 1) for name in ("y", "dx")}
    return out


def _check(rng, graph, after, shape, last, groups, samples, names, **which):
    feeds = _feeds(rng, shape, samples)
    exact = _exact(feeds, last, groups, **which)
    for name in names:
        stock, got = (run(g, feeds, f"{name}:0") for g in (graph, after))
        assert got.shape == stock.shape == exact[name].shape, name
        tolerance = 2e-5 * np.abs(exact[name]).max()
        np.testing.assert_allclose(stock, exact[name], 1e-4, tolerance, err_msg=f"stock {name}")
        np.testing.assert_allclose(got, exact[name], 1e-4, tolerance, err_msg=name)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("given", [(True, True), (True, False), (False, True)], ids=str)
@pytest.mark.parametrize("norm", NORMS, ids=lambda n: n.__name__)
@pytest.mark.parametrize("groups", [CHANNELS, 2])
@pytest.mark.parametrize("last", [True, False], ids=["last", "first"])
def test_norm_and_its_gradients_are_one_op_each(rng, last, groups, norm, given) -> None:
    scaled, shifted = given
    if norm is scale_first and not scaled:
        pytest.skip("no scale")
    graph, shape = _graph(norm, last, groups, scaled=scaled, shifted=shifted)
    names = ["y", "dx"] + ["dscale"] * scaled + ["doffset"] * shifted
    after, report = rewrite(graph, fetches=names)
    assert len(report.fused) == 2 and not report.refused, report
    (node,) = fused_nodes(after)
    assert node.attr["per_sample"].b
    assert node.attr["num_scale"].i == scaled and node.attr["num_offset"].i == shifted
    (gradient,) = ops(tf.compat.v1.graph_util.extract_sub_graph(after, names), [f"{node.op}Grad"])
    assert gradient.attr["num_dscale"].i == scaled and gradient.attr["num_doffset"].i == shifted
    for samples in [(N, N, N), *SAMPLES]:
        if not scaled and samples[1] > max(samples[0], samples[2]):
            continue
        if not shifted and samples[2] > max(samples[0], samples[1]):
            continue
        _check(
            rng, graph, after, shape, last, groups, samples, names, scaled=scaled, shifted=shifted
        )


_SOME = [("dx",), ("dx", "doffset"), ("dx", "dscale"), ("dscale", "doffset"), ("dscale",)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("gradients", _SOME, ids=",".join)
@pytest.mark.parametrize("norm", NORMS, ids=lambda n: n.__name__)
@pytest.mark.parametrize("groups", [CHANNELS, 2])
@pytest.mark.parametrize("last", [True, False], ids=["last", "first"])
def test_what_is_not_trained_has_no_gradient(rng, last, groups, norm, gradients) -> None:
    graph, shape = _graph(norm, last, groups, gradients=gradients)
    names = ["y", *gradients]
    after, report = rewrite(graph, fetches=names)
    assert len(report.fused) == 2 and not report.refused, report
    (node,) = fused_nodes(after)
    assert node.attr["per_sample"].b
    assert not {"Rsqrt", "Sqrt"} & ops_behind(after, names)
    for samples in [(N, N, N), *SAMPLES]:
        _check(rng, graph, after, shape, last, groups, samples, names)


@pytest.mark.parametrize(
    "batches", [(N, None, None), (None, N, N), (None, N, None), (N, N, None)], ids=str
)
@pytest.mark.parametrize("groups", [CHANNELS, 2])
def test_some_batches_known(rng, batches, groups) -> None:
    graph, shape = _graph(batches=batches, groups=groups)
    names = ["y", "dx", "dscale", "doffset"]
    after, report = rewrite(graph, fetches=names)
    assert len(report.fused) == 2 and not report.refused, report
    assert fused_nodes(after)[0].attr["per_sample"].b
    for samples in [(N, N, N), *SAMPLES]:
        if all(known in (None, n) for known, n in zip(batches, samples, strict=True)):
            _check(rng, graph, after, shape, True, groups, samples, names)


@pytest.mark.parametrize("residual", [1, N])
def test_a_residual_of_an_unknown_batch(rng, residual) -> None:
    """dy may have more samples than the norm's own y."""
    graph, shape = _graph(residual=True)
    names = ["y", "dx", "dscale", "doffset"]
    after, report = rewrite(graph, fetches=names)
    assert len(report.fused) == 2, report
    for samples in [(N, N, N), (1, 1, 1), *SAMPLES]:
        feeds = _feeds(rng, shape, samples, residual)
        for name in names:
            stock, got = (run(g, feeds, f"{name}:0") for g in (graph, after))
            assert got.shape == stock.shape
            np.testing.assert_allclose(got, stock, 1e-3, 1e-4 * np.abs(stock).max(), err_msg=name)


@pytest.mark.parametrize("groups", [CHANNELS, 2])
@pytest.mark.parametrize("last", [True, False], ids=["last", "first"])
def test_forward_alone(rng, last, groups) -> None:
    graph, shape = _graph(last=last, groups=groups, gradients=())
    after, report = rewrite(graph, fetches=["y"])
    assert len(report.fused) == 1 and not report.refused, report
    assert fused_nodes(after)[0].attr["per_sample"].b
    for samples in [(N, N, N), *SAMPLES]:
        _check(rng, graph, after, shape, last, groups, samples, ["y"])


def test_no_samples(rng) -> None:
    graph, shape = _graph()
    names = ["y", "dx", "dscale", "doffset"]
    after, _ = rewrite(graph, fetches=names)
    for samples in [(0, 0, 0), (1, 0, 1), (0, 1, 1)]:
        feeds = _feeds(rng, shape, samples)
        feeds["dy"] = feeds["dy"][:0]
        for name in names:
            stock, got = (run(g, feeds, f"{name}:0") for g in (graph, after))
            np.testing.assert_array_equal(got, stock, err_msg=name)


def test_batches_that_cannot_be_broadcast_are_an_error_as_in_stock(rng) -> None:
    graph, shape = _graph()
    after, _ = rewrite(graph, fetches=["y"])
    feeds = _feeds(rng, shape, (2, 3, 3))
    for each in (graph, after):
        with pytest.raises(tf.errors.InvalidArgumentError):
            run(each, feeds)


def test_channels_of_unknown_number_stay_beside_the_op(rng) -> None:
    """A scale of one channel would be that of all."""

    def make() -> None:
        x = placeholder("x", (None, *SPACE, None))
        scale = placeholder("scale", (None, 1, 1, None))
        tf.identity(plain(x, scale, None, [1, 2]), name="y")

    graph = trace(make)
    after, _ = rewrite(graph, fetches=["y"])
    for node in fused_nodes(after):
        assert not node.attr["per_sample"].b and node.attr["num_scale"].i == 0
    feeds = {"x": rng.normal(0.5, 2.0, (N, *SPACE, CHANNELS)).astype("f")}
    for shape in [(N, 1, 1, CHANNELS), (N, 1, 1, 1), (1, 1, 1, CHANNELS)]:
        feeds["scale"] = rng.normal(0.5, 2.0, shape).astype("f")
        np.testing.assert_allclose(run(after, feeds), run(graph, feeds), 1e-4, 1e-4)


def test_y_broadcast_with_more_samples_behind_the_norm(rng) -> None:
    """What is behind y sums to y's samples, not the op."""

    def make() -> None:
        x, other = (placeholder(name, (None, *SPACE, CHANNELS)) for name in ("x", "other"))
        scale = placeholder("scale", (None, 1, 1, CHANNELS))
        y = tf.identity(plain(x, scale, None, [1, 2]) * other, name="y")
        dy = placeholder("dy", y.shape)
        for name, value in zip(("dx", "dscale"), tf.gradients(y, [x, scale], dy), strict=True):
            tf.identity(value, name=name)

    graph = trace(make)
    names = ["y", "dx", "dscale"]
    after, report = rewrite(graph, fetches=names)
    assert report.fused
    for samples in [(N, N, N), *SAMPLES]:
        shapes = {"x": (samples[0], *SPACE, CHANNELS), "scale": (samples[1], 1, 1, CHANNELS)}
        shapes |= {"other": (samples[2], *SPACE, CHANNELS)}
        shapes |= {"dy": (max(samples), *SPACE, CHANNELS)}
        feeds = {name: rng.normal(0.5, 2.0, s).astype("f") for name, s in shapes.items()}
        for name in names:
            stock, got = (run(g, feeds, f"{name}:0") for g in (graph, after))
            assert got.shape == stock.shape
            np.testing.assert_allclose(got, stock, 1e-3, 1e-4 * np.abs(stock).max(), err_msg=name)


@pytest.mark.parametrize("batch", [None, N], ids=str)
def test_gradients_that_nobody_fetches_do_not_count(rng, batch) -> None:
    graph, shape = _graph(batches=(batch,) * 3)
    after, report = rewrite(graph, fetches=["y"])
    assert len(report.fused) == 1 and not report.refused, report
    (node,) = fused_nodes(after)
    assert node.attr["per_sample"].b and node.attr["num_scale"].i == node.attr["num_offset"].i == 1
    for samples in [(N, N, N), *SAMPLES] if batch is None else [(N, N, N)]:
        _check(rng, graph, after, shape, True, CHANNELS, samples, ["y"])
