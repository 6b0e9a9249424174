"""Small graphs of one fused norm and its gradient with Casts beside them, rewritten offline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

import fused_graphs
import nv_norms_rewriter
import oracle as formulas
from fused_graphs import EPSILON

v1 = tf.compat.v1
SHAPE = (3, 4, 5, 8)
GROUPS = 2
KINDS = ("layer", "rms", "instance", "group")
HALVES = [tf.float16, tf.bfloat16]
TYPES = ("T", "Y", "out_type", "dx_type", "param_type")


def placeholder(name: str, shape: Sequence[int | None] | None = SHAPE, dtype=tf.float32):
    return fused_graphs.placeholder(name, shape, dtype)


class Expected(NamedTuple):
    """In float64 NumPy."""

    y: np.ndarray
    dx: np.ndarray
    dgamma: np.ndarray
    dbeta: np.ndarray


def oracle(kind: str, feeds: Mapping[str, np.ndarray]) -> Expected:
    x, gamma, beta = (feeds[key].astype(np.float64) for key in ("x", "gamma", "beta"))
    dy = feeds.get("dy", np.zeros(x.shape)).astype(np.float64)
    parameters = (-1,)
    if kind == "layer":
        y, axes = formulas.layer_norm(x, gamma, beta, epsilon=EPSILON).y, (-1,)
    elif kind == "rms":
        y, axes = formulas.rms_norm(x, gamma, beta, epsilon=EPSILON).y, (-1,)
    elif kind == "instance":
        y, axes = formulas.instance_norm(x, gamma, beta, epsilon=EPSILON).y, (1, 2)
    else:
        y, axes = formulas.group_norm(x, gamma, beta, GROUPS, epsilon=EPSILON).y, (1, 2, 4)
    given = (dy, x)
    if kind == "group":
        channels = x.shape[-1]
        given = tuple(a.reshape(*a.shape[:-1], GROUPS, channels // GROUPS) for a in given)
        gamma, parameters = gamma.reshape(GROUPS, -1), (-2, -1)
    back = formulas.backward(*given, gamma, axes, parameters, EPSILON, kind != "rms")
    return Expected(y, back.dx.reshape(x.shape), back.dgamma.ravel(), back.dbeta.ravel())


def draw(rng: np.random.Generator, shape=SHAPE) -> dict[str, np.ndarray]:
    """What to feed: no number of x and dy is one of a narrow type."""
    return {
        "x": (5.0 + rng.normal(size=shape)).astype(np.float32),
        "dy": rng.normal(size=shape).astype(np.float32),
        "gamma": rng.uniform(0.5, 2.0, shape[-1]).astype(np.float32),
        "beta": rng.normal(size=shape[-1]).astype(np.float32),
    }


def run(graph: v1.GraphDef, feeds: Mapping[str, np.ndarray], fetches: Sequence[str]) -> list:
    """Of the feeds those that the graph has."""
    there = {node.name for node in graph.node}
    return fused_graphs.run(graph, {k: v for k, v in feeds.items() if k in there}, fetches)


def casts(graph: v1.GraphDef) -> list[str]:
    return sorted(node.name for node in graph.node if node.op == "Cast")


def needed(graph: v1.GraphDef, fetches: Sequence[str]) -> set[str]:
    """The names of what runs."""
    nodes = {node.name: node for node in graph.node}
    found, waiting = set(fetches), list(fetches)
    while waiting:
        sources = {name.lstrip("^").partition(":")[0] for name in nodes[waiting.pop()].input}
        waiting += sources - found
        found |= sources
    return found


def fused(graph: v1.GraphDef) -> list[v1.NodeDef]:
    return [node for node in graph.node if node.op.startswith("Fused")]


def types(node: v1.NodeDef) -> dict[str, tf.DType]:
    """Those of the big tensors, by attribute."""
    return {key: tf.as_dtype(node.attr[key].type) for key in TYPES if key in node.attr}


def rewritten(
    graph: v1.GraphDef, fetches: Sequence[str], device: str | None = "GPU"
) -> v1.GraphDef:
    """The new graph; nothing is reported, and a second pass finds nothing."""
    result, report = nv_norms_rewriter.rewrite(graph, device=device, fetches=fetches)
    assert not report, report
    again, _ = nv_norms_rewriter.rewrite(result, device=device, fetches=fetches)
    assert again == result
    return result


def check_as_close(
    before: v1.GraphDef,
    after: v1.GraphDef,
    feeds: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
) -> None:
    """What is fetched keeps its type and comes at least as close to float64 as before."""
    fetches = list(expected)
    old, new = (run(graph, feeds, fetches) for graph in (before, after))
    for name, was, now in zip(fetches, old, new, strict=True):
        assert was.dtype == now.dtype, name
        errors = [np.abs(v.astype(np.float64) - expected[name]).max() for v in (was, now)]
        assert errors[1] <= errors[0] + 1e-6 * np.abs(expected[name]).max(), (name, errors)


def check_unchanged(graph: v1.GraphDef, fetches: Sequence[str], device: str | None = "GPU") -> None:
    assert rewritten(graph, fetches, device) == graph
