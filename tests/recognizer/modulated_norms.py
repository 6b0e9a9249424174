"""Norms with a gamma and a beta that are scaled and shifted for each sample behind that, and what
they compute, from the formulas."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf
from recognizer_graphs import fused_nodes, placeholder, run, trace

EPSILON = 1e-3
BATCH, ROWS, CHANNELS, GROUPS = 3, (5, 4), 8, 2
SHAPE, PARAM = (BATCH, *ROWS, CHANNELS), (BATCH, 1, 1, CHANNELS)
FIRST, PARAM_FIRST = (BATCH, CHANNELS, *ROWS), (BATCH, CHANNELS, 1, 1)
BOTH = ("scale", "offset")
AFFINE = ("gamma", "beta")

Arrays = dict[str, np.ndarray]


def normalized(x: tf.Tensor, axes: list[int], center: bool = True) -> tf.Tensor:
    if not center:
        return x * tf.math.rsqrt(tf.reduce_mean(tf.square(x), axes, keepdims=True) + EPSILON)
    mean, variance = tf.nn.moments(x, axes, keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + EPSILON)


def layer_norm(x: tf.Tensor) -> tf.Tensor:
    return normalized(x, [-1])


def rms_norm(x: tf.Tensor) -> tf.Tensor:
    return normalized(x, [-1], center=False)


def instance_norm(x: tf.Tensor) -> tf.Tensor:
    return normalized(x, [1, 2])


def instance_norm_first(x: tf.Tensor) -> tf.Tensor:
    return normalized(x, [2, 3])


def group_norm(x: tf.Tensor) -> tf.Tensor:
    grouped = tf.reshape(x, [-1, *ROWS, GROUPS, CHANNELS // GROUPS])
    return tf.reshape(normalized(grouped, [1, 2, 4]), [-1, *ROWS, CHANNELS])


def layer_norm_of_two_axes(x: tf.Tensor) -> tf.Tensor:
    return normalized(x, [-2, -1])


NORMS = [layer_norm, rms_norm, instance_norm, instance_norm_first, group_norm]
OPS = {
    layer_norm: "FusedLayerNorm",
    layer_norm_of_two_axes: "FusedLayerNorm",
    rms_norm: "FusedRMSNorm",
    instance_norm: "FusedInstanceNorm",
    instance_norm_first: "FusedInstanceNorm",
    group_norm: "FusedGroupNorm",
}
Norm = Callable[[tf.Tensor], tf.Tensor]


def shapes(norm: Norm) -> dict[str, tuple[int, ...]]:
    x, param, of_all = SHAPE, PARAM, (CHANNELS,)
    if norm is instance_norm_first:
        x, param, of_all = FIRST, PARAM_FIRST, (CHANNELS, 1, 1)
    if norm is layer_norm_of_two_axes:
        param, of_all = (BATCH, 1, *SHAPE[2:]), SHAPE[2:]
    return {"x": x, "dy": x, "scale": param, "offset": param, "gamma": of_all, "beta": of_all}


def modulated(norm: Norm, x: tf.Tensor, given: Mapping[str, tf.Tensor]) -> tf.Tensor:
    y = norm(x)
    for name, op in {"gamma": "*", "beta": "+", "scale": "*", "offset": "+"}.items():
        if name in given:
            y = y * given[name] if op == "*" else y + given[name]
    return y


def graph_of(norm: Norm, given: tuple[str, ...], batch: int | None = BATCH, dtype=tf.float32):
    """y and the gradients of all."""

    def make() -> None:
        def tensor(name: str) -> tf.Tensor:
            of_each = name not in AFFINE
            shape = shapes(norm)[name]
            return placeholder(name, (batch, *shape[1:]) if of_each else shape, dtype)

        x, dy = tensor("x"), tensor("dy")
        parameters = {name: tensor(name) for name in given}
        y = modulated(norm, x, parameters)
        tf.identity(y, name="y")
        gradients = tf.gradients(y, [x, *parameters.values()], grad_ys=dy)
        for name, value in zip(["x", *given], gradients, strict=True):
            tf.identity(value, name=f"d{name}")

    return trace(make)


def feeds(rng: np.random.Generator, norm: Norm, given: tuple[str, ...], dtype="f") -> Arrays:
    names = ["x", "dy", *given]
    return {name: rng.normal(0.5, 2.0, shapes(norm)[name]).astype(dtype) for name in names}


def statistics(norm: Norm, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, Callable]:
    """xhat, rstd and how a mean is taken, from the formulas."""
    axes = {layer_norm: (3,), rms_norm: (3,), layer_norm_of_two_axes: (2, 3)}.get(norm, (1, 2))
    axes = (2, 3) if norm is instance_norm_first else axes

    def mean(values: np.ndarray) -> np.ndarray:
        if norm is not group_norm:
            return np.broadcast_to(values.mean(axes, keepdims=True), values.shape)
        grouped = values.reshape(len(values), *ROWS, GROUPS, -1)
        means = grouped.mean((1, 2, 4), keepdims=True)
        return np.broadcast_to(means, grouped.shape).reshape(values.shape)

    e = x - mean(x) if norm is not rms_norm else x
    rstd = 1 / np.sqrt(mean(e**2) + EPSILON)
    return e * rstd, rstd, mean


def exact(norm: Norm, values: Arrays) -> Arrays:
    v = {name: value.astype(np.float64) for name, value in values.items()}
    one, zero = np.ones(1), np.zeros(1)
    gamma, scale = v.get("gamma", one), v.get("scale", one)
    beta, offset = v.get("beta", zero), v.get("offset", zero)
    xhat, rstd, mean = statistics(norm, v["x"])
    dy = v["dy"]
    w = dy * scale * gamma
    dx = rstd * (w - xhat * mean(w * xhat) - (0 if norm is rms_norm else mean(w)))

    def summed(of: np.ndarray, name: str) -> np.ndarray:
        shape = shapes(norm)[name]
        full = (1,) * (of.ndim - len(shape)) + shape
        axes = tuple(a for a in range(of.ndim) if full[a] == 1)
        return of.sum(axes).reshape(shape)

    return {
        "y": (xhat * gamma + beta) * scale + offset,
        "dx": dx,
        "dgamma": summed(dy * scale * xhat, "gamma"),
        "dbeta": summed(dy * scale, "beta"),
        "dscale": summed(dy * (xhat * gamma + beta), "scale"),
        "doffset": summed(dy, "offset"),
    }


def compare(graph, after, values: Arrays, names: list[str], expected: Arrays, tolerance: float):
    for name in names:
        stock, got = (run(each, values, f"{name}:0") for each in (graph, after))
        assert got.shape == stock.shape and got.dtype == stock.dtype, name
        largest = tolerance * np.abs(expected[name]).max()
        reference = expected[name].reshape(stock.shape)
        np.testing.assert_allclose(got.astype("d"), reference, tolerance, largest, err_msg=name)


def assert_taken_in(after, report, norm: Norm) -> None:
    assert sorted(r.direction for r in report.fused) == ["backward", "forward"], report
    assert not report.refused
    (node,) = fused_nodes(after)
    (gradient,) = (n for n in after.node if n.op == f"{OPS[norm]}Grad")
    assert node.op == OPS[norm] and node.attr["per_sample"].b and gradient.attr["per_sample"].b
    (forward,) = (r for r in report.fused if r.direction == "forward")
    (backward,) = (r for r in report.fused if r.direction == "backward")
    assert forward.outputs == (f"{node.name}:0",)
    assert backward.inputs[0] == f"{gradient.input[0]}:0"


def large_ops(after, names: list[str]) -> list[str]:
    """What the fetches still need of the ops that compute with as many numbers as x has."""
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(after, name="")
    needed = {tensor.split(":")[0].lstrip("^") for tensor in names}
    waiting = list(needed)
    while waiting:
        op = graph.get_operation_by_name(waiting.pop())
        new = {tensor.op.name for tensor in op.inputs} - needed
        needed |= new
        waiting += new
    large = []
    for op in map(graph.get_operation_by_name, needed):
        if op.type in ("Mul", "AddV2", "Sub", "Sum", "Rsqrt", "Mean"):
            sizes = [t.shape[1:-1].num_elements() for t in op.inputs if t.shape.rank == 4]
            large += [op.name] * any(size is None or size >= ROWS[0] for size in sizes)
    return large
