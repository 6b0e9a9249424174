"""Instance and group norms with a scale and an offset of each sample: one op, whose parameters have
gradients of their own. What only looks like such parameters stays beside the op."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import tensorflow as tf
from recognizer_graphs import fused_nodes, placeholder, run, trace

from nv_norms_rewriter import rewrite

EPSILON = 1e-3
BATCH, SPACE, CHANNELS = 3, (5, 4), 8

Norm = Callable[[tf.Tensor, tf.Tensor | None, tf.Tensor | None, list[int]], tf.Tensor]


def plain(x, scale, offset, axes):
    mean, variance = tf.nn.moments(x, axes, keepdims=True)
    y = (x - mean) * tf.math.rsqrt(variance + EPSILON)
    y = y if scale is None else y * scale
    return y if offset is None else y + offset


def batch_normalization(x, scale, offset, axes):
    mean, variance = tf.nn.moments(x, axes, keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, offset, scale, EPSILON)


def scale_first(x, scale, offset, axes):
    mean, variance = tf.nn.moments(x, axes, keepdims=True)
    y = (x - mean) * scale / tf.sqrt(variance + EPSILON)
    return y if offset is None else y + offset


class Case:
    """x, its scale and offset, and their gradients, as a graph and in float64."""

    def __init__(self, norm: Norm, last: bool, groups: int, batch: int | None = BATCH) -> None:
        self.norm, self.last, self.groups = norm, last, groups
        self.shape = (BATCH, *SPACE, CHANNELS) if last else (BATCH, CHANNELS, *SPACE)
        self.param = (BATCH, 1, 1, CHANNELS) if last else (BATCH, CHANNELS, 1, 1)
        self.batch = batch

    def values(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        shapes = {"x": self.shape, "dy": self.shape, "scale": self.param, "offset": self.param}
        return {name: rng.normal(0.5, 2.0, shape).astype("f") for name, shape in shapes.items()}

    def _grouped(self, x, given):
        """norm(x) over groups: channels split in two, and back."""
        if self.groups == CHANNELS:
            return self.norm(x, *given, [1, 2] if self.last else [2, 3])
        split = (self.groups, CHANNELS // self.groups)
        params = (BATCH, 1, 1, *split) if self.last else (BATCH, *split, 1, 1)
        shape = (BATCH, *SPACE, *split) if self.last else (BATCH, *split, *SPACE)
        given = [None if each is None else tf.reshape(each, params) for each in given]
        y = self.norm(tf.reshape(x, shape), *given, [1, 2, 4] if self.last else [2, 3, 4])
        return tf.reshape(y, self.shape)

    def graph(self, scaled: bool = True, shifted: bool = True, gradient: bool = True):
        def make() -> None:
            x, dy, scale, offset = (
                placeholder(name, (self.batch, *shape[1:]))
                for name, shape in [
                    ("x", self.shape), ("dy", self.shape),
                    ("scale", self.param), ("offset", self.param),
                ]
            )  # fmt: skip
            given = [scale if scaled else None, offset if shifted else None]
            y = tf.identity(self._grouped(x, given), name="y")
            if gradient:
                wanted = {"dx": x}
                wanted |= {"dscale": scale} if scaled else {}
                wanted |= {"doffset": offset} if shifted else {}
                gradients = tf.gradients(y, list(wanted.values()), grad_ys=dy)
                for name, value in zip(wanted, gradients, strict=True):
                    tf.identity(value, name=name)

        return trace(make)

    def exact(self, values: dict[str, np.ndarray], scaled: bool, shifted: bool):
        x, dy, scale, offset = (
            values[name].astype(np.float64) for name in ("x", "dy", "scale", "offset")
        )
        scale, offset = scale if scaled else np.ones(1), offset if shifted else np.zeros(1)
        split = (self.groups, CHANNELS // self.groups)
        view = (BATCH, *SPACE, *split) if self.last else (BATCH, *split, *SPACE)
        axes = (1, 2, 4) if self.last else (2, 3, 4)

        def mean(value):
            out = value.reshape(view).mean(axes, keepdims=True)
            return np.broadcast_to(out, view).reshape(self.shape)

        rstd = 1 / np.sqrt(mean((x - mean(x)) ** 2) + EPSILON)
        xhat, w = (x - mean(x)) * rstd, dy * scale
        space = (1, 2) if self.last else (2, 3)
        return {
            "y": xhat * scale + offset,
            "dx": rstd * (w - mean(w) - xhat * mean(w * xhat)),
            "dscale": (dy * xhat).sum(space, keepdims=True),
            "doffset": dy.sum(space, keepdims=True),
        }


def check(case: Case, rng, scaled: bool, shifted: bool, gradient: bool = True):
    graph = case.graph(scaled, shifted, gradient)
    names = ["y"] + ["dx"] * gradient + ["dscale"] * scaled * gradient
    names += ["doffset"] * shifted * gradient
    after, report = rewrite(graph, fetches=names)
    values = case.values(rng)
    exact = case.exact(values, scaled, shifted)
    for name in names:
        stock, got = (run(each, values, f"{name}:0") for each in (graph, after))
        assert got.shape == stock.shape
        tolerance = 2e-5 * np.abs(exact[name]).max()
        np.testing.assert_allclose(stock, exact[name], 1e-4, tolerance, err_msg=f"stock {name}")
        np.testing.assert_allclose(got, exact[name], 1e-4, tolerance, err_msg=name)
    return tf.compat.v1.graph_util.extract_sub_graph(after, names), report


def ops(graph, kind: Sequence[str]) -> list[tf.compat.v1.NodeDef]:
    return [node for node in graph.node if node.op in kind]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("given", [(True, True), (True, False), (False, True)], ids=str)
@pytest.mark.parametrize(
    "norm", [plain, batch_normalization, scale_first], ids=lambda n: n.__name__
)
@pytest.mark.parametrize("groups", [CHANNELS, 2, 1])
@pytest.mark.parametrize("last", [True, False], ids=["last", "first"])
def test_norm_and_its_gradients_are_one_op_each(rng, last, groups, norm, given) -> None:
    scaled, shifted = given
    if norm is scale_first and not scaled:
        pytest.skip("no scale")
    after, report = check(Case(norm, last, groups), rng, scaled, shifted)
    forward, backward = (
        next(r for r in report.fused if r.direction == d) for d in ("forward", "backward")
    )
    assert len(report.fused) == 2 and not report.refused, report
    assert forward.kind == backward.kind == ("instance_norm" if groups == 8 else "group_norm")
    (node,) = fused_nodes(after)
    assert node.attr["per_sample"].b
    assert node.attr["num_scale"].i == scaled and node.attr["num_offset"].i == shifted
    (gradient,) = ops(after, [f"{node.op}Grad"])
    assert gradient.attr["per_sample"].b
    assert gradient.attr["num_dscale"].i == scaled and gradient.attr["num_doffset"].i == shifted
    read = {name.partition(":")[0] for node in after.node for name in node.input}
    left = ops(after, ["Mul", "Add", "AddV2", "Sub", "Sum", "AddN", "RealDiv"])
    assert not [node.name for node in left if node.name in read and node.name != "sub"]


@pytest.mark.parametrize("groups", [CHANNELS, 2])
@pytest.mark.parametrize("last", [True, False], ids=["last", "first"])
def test_forward_alone(rng, last, groups) -> None:
    after, report = check(Case(plain, last, groups), rng, True, True, gradient=False)
    assert len(report.fused) == 1 and fused_nodes(after)[0].attr["per_sample"].b


BESIDE = {
    "of each sample and row": (BATCH, SPACE[0], 1, CHANNELS),
    "of each element": (BATCH, *SPACE, CHANNELS),
    "of each sample": (BATCH, 1, 1, 1),
}


@pytest.mark.parametrize("shape", BESIDE.values(), ids=BESIDE)
def test_other_scales_stay_beside_the_op(rng, shape: tuple[int, ...]) -> None:
    def make() -> None:
        x, scale = placeholder("x", (BATCH, *SPACE, CHANNELS)), placeholder("scale", shape)
        tf.identity(plain(x, scale, None, [1, 2]), name="y")

    graph = trace(make)
    after, _ = rewrite(graph, fetches=["y"])
    for node in fused_nodes(after):
        assert not node.attr["per_sample"].b and node.attr["num_scale"].i == 0
    feeds = {"x": rng.normal(0.5, 2.0, (BATCH, *SPACE, CHANNELS)).astype("f")}
    feeds["scale"] = rng.normal(0.5, 2.0, shape).astype("f")
    stock, got = (run(each, feeds) for each in (graph, after))
    np.testing.assert_allclose(got, stock, 1e-4, 1e-4)


def test_rows_of_channels_have_no_samples_to_scale(rng) -> None:
    """Of x [N, C] a scale [N, C] is one of each element."""

    def make() -> None:
        x, scale = placeholder("x", (6, 8)), placeholder("scale", (6, 8))
        tf.identity(plain(x, scale, None, [-1]), name="y")

    graph = trace(make)
    after, _ = rewrite(graph, fetches=["y"])
    assert [node.op for node in fused_nodes(after)] == ["FusedLayerNorm"]
    assert fused_nodes(after)[0].attr["num_scale"].i == 0
    feeds = {name: rng.normal(0.5, 2.0, (6, 8)).astype("f") for name in ("x", "scale")}
    np.testing.assert_allclose(run(after, feeds), run(graph, feeds), 1e-4, 1e-4)


def test_scale_of_channels_and_offset_of_each_sample(rng) -> None:
    """The scale is that of one sample, which stands for all."""

    def make() -> None:
        x, scale = placeholder("x", (BATCH, *SPACE, CHANNELS)), placeholder("scale", (CHANNELS,))
        offset = placeholder("offset", (BATCH, 1, 1, CHANNELS))
        tf.identity(plain(x, scale, offset, [1, 2]), name="y")

    graph = trace(make)
    after, report = rewrite(graph, fetches=["y"])
    assert len(report.fused) == 1
    (node,) = fused_nodes(after)
    assert node.attr["per_sample"].b
    assert node.attr["num_scale"].i == node.attr["num_offset"].i == 1
    shapes = {"x": (BATCH, *SPACE, CHANNELS), "scale": (CHANNELS,)}
    shapes["offset"] = (BATCH, 1, 1, CHANNELS)
    feeds = {name: rng.normal(0.5, 2.0, shape).astype("f") for name, shape in shapes.items()}
    np.testing.assert_allclose(run(after, feeds), run(graph, feeds), 1e-4, 1e-4)
