"""Small graphs of a fused norm, an activation and their gradients, rewritten offline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

import fused_graphs
import nv_norms_rewriter
import oracle as formulas
from fused_graphs import EPSILON

v1 = tf.compat.v1
KINDS = ("instance", "group")
GROUPS = 2
C = 8
SHAPE = (3, 4, 5, C)
FIRST = (3, C, 4, 5)
FETCHES = ["a", "dx", "dgamma", "dbeta"]
ACTIVATIONS = ("LeakyRelu", "LeakyReluGrad", "Relu", "ReluGrad")


def placeholder(name: str, shape: Sequence[int | None] | None = SHAPE, dtype=tf.float32):
    return fused_graphs.placeholder(name, shape, dtype)


def activation(y, slope: float, name: str | None = None):
    """A slope of 0 is a Relu."""
    if slope == 0:
        return tf.nn.relu(y, name=name)
    return tf.nn.leaky_relu(y, slope, name=name)


def activation_grad(da, y, a, slope: float, name: str | None = None):
    """As TensorFlow registers it: that of Relu reads its output."""
    if slope == 0:
        return tf.raw_ops.ReluGrad(gradients=da, features=a, name=name)
    return tf.raw_ops.LeakyReluGrad(gradients=da, features=y, alpha=slope, name=name)


def make_step(
    kind: str,
    slope: float,
    *,
    dtype=tf.float32,
    last: bool = True,
    shape: Sequence[int | None] | None = None,
    scale: bool = True,
    offset: bool = True,
    forward: Callable = activation,
    backward: Callable = activation_grad,
) -> None:
    """A norm, an activation `a` and their gradients; in float64 parameters are so, too."""
    if shape is None:
        shape = SHAPE if last else FIRST
    wide = tf.float64 if dtype == tf.float64 else tf.float32
    gamma, beta = (placeholder(n, [C], wide) for n in ("gamma", "beta"))
    gamma, beta = gamma if scale else None, beta if offset else None
    x, da = placeholder("x", shape, dtype), placeholder("da", shape, dtype)
    y, *statistics = fused_graphs.norm(kind, x, gamma, beta, last, name="norm")
    a = forward(y, slope, name="a")
    dy = backward(da, y, a, slope, name="dy")
    outputs = fused_graphs.norm_grad(
        kind, dy, x, gamma, statistics, last, name="grad", param_type=wide
    )
    for name, tensor in zip(("dx", "dgamma", "dbeta"), outputs, strict=True):
        tf.identity(tensor, name=name)


def draw(rng: np.random.Generator, shape=SHAPE, dtype=np.float32) -> dict[str, np.ndarray]:
    """What to feed; y has both signs in every channel."""
    wide = np.float64 if dtype == np.float64 else np.float32
    return {
        "x": (5.0 + rng.normal(size=shape)).astype(dtype),
        "da": rng.normal(size=shape).astype(dtype),
        "gamma": (rng.uniform(0.5, 2.0, C) * rng.choice([-1, 1], C)).astype(wide),
        "beta": rng.normal(scale=0.5, size=C).astype(wide),
    }


def oracle(
    kind: str, feeds: Mapping[str, np.ndarray], slope: float | str, last: bool = True
) -> dict[str, np.ndarray]:
    """a, dx, dgamma, dbeta in float64 NumPy; slope: of a leaky relu, or "silu"."""
    x, da = (np.asarray(feeds[key]).astype(np.float64) for key in ("x", "da"))
    gamma = np.asarray(feeds.get("gamma", np.ones(C))).astype(np.float64)
    beta = np.asarray(feeds.get("beta", np.zeros(C))).astype(np.float64)
    if not last:
        x, da = (np.moveaxis(t, 1, -1) for t in (x, da))
    groups = GROUPS if kind == "group" else C
    y = formulas.group_norm(x, gamma, beta, groups, epsilon=EPSILON).y
    if slope == "silu":
        sigmoid = 1 / (1 + np.exp(-y))
        a, derivative = y * sigmoid, sigmoid * (1 + y * (1 - sigmoid))
    else:
        derivative = np.where(y > 0, 1.0, slope)
        a = derivative * y
    split = (*x.shape[:-1], groups, C // groups)
    back = formulas.backward(
        (derivative * da).reshape(split),
        x.reshape(split),
        gamma.reshape(groups, -1),
        (1, 2, 4),
        (-2, -1),
        EPSILON,
    )
    dx = back.dx.reshape(x.shape)
    if not last:
        a, dx = (np.moveaxis(t, -1, 1) for t in (a, dx))
    return {"a": a, "dx": dx, "dgamma": back.dgamma.ravel(), "dbeta": back.dbeta.ravel()}


def run(graph: v1.GraphDef, feeds: Mapping[str, np.ndarray], fetches: Sequence[str]) -> list:
    """On the CPU; of the feeds those that the graph has."""
    there = {node.name for node in graph.node}
    return fused_graphs.run(graph, {k: v for k, v in feeds.items() if k in there}, fetches)


def fused(graph: v1.GraphDef) -> list[v1.NodeDef]:
    """The fused ops, forwards first."""
    found = [node for node in graph.node if node.op.startswith("Fused")]
    return sorted(found, key=lambda node: node.op.endswith("Grad"))


def slopes(graph: v1.GraphDef) -> list[float]:
    """Of the fused ops, forwards first; 1.0 without an activation."""
    return [
        round(n.attr["negative_slope"].f, 6) if "negative_slope" in n.attr else 1.0
        for n in fused(graph)
    ]


def activations(graph: v1.GraphDef) -> list[str]:
    return sorted(node.name for node in graph.node if node.op in ACTIVATIONS)


def rewritten(
    graph: v1.GraphDef, fetches: Sequence[str], device: str | None = "GPU"
) -> v1.GraphDef:
    """The new graph; a second pass finds nothing, and TensorFlow accepts it."""
    result, _ = nv_norms_rewriter.rewrite(graph, device=device, fetches=fetches)
    again, _ = nv_norms_rewriter.rewrite(result, device=device, fetches=fetches)
    assert again == result
    with tf.Graph().as_default():
        tf.import_graph_def(result, name="")
    return result


def check_unchanged(graph: v1.GraphDef, fetches: Sequence[str], device: str | None = "GPU") -> None:
    assert rewritten(graph, fetches, device) == graph


def check_close(
    before: v1.GraphDef,
    after: v1.GraphDef,
    feeds: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
    tolerance: float = 2e-5,
) -> None:
    """What is fetched keeps its type; it is near float64, or as near as before."""
    fetches = list(expected)
    old, new = (run(graph, feeds, fetches) for graph in (before, after))
    for name, was, now in zip(fetches, old, new, strict=True):
        assert (was.dtype, was.shape) == (now.dtype, now.shape), name
        size = np.abs(expected[name]).max()
        errors = [np.abs(v.astype(np.float64) - expected[name]).max() for v in (was, now)]
        assert errors[1] <= max(tolerance * size, 1.05 * errors[0]), (name, errors, size)
