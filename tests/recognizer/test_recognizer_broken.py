"""Graphs of norms and their gradients with something in them changed: most are no norm any more.

Those that still run are rewritten, and compute the same then.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from recognizer_graphs import layer_norm, placeholder, run, trace

from nv_norms_rewriter import rewrite

v1 = tf.compat.v1
CHANNELS = 6
SWAPS = {
    "Mul": ["AddV2", "Sub", "RealDiv", "Maximum"],
    "AddV2": ["Mul", "Sub"],
    "Sub": ["SquaredDifference", "AddV2", "Mul"],
    "SquaredDifference": ["Sub", "Mul"],
    "Mean": ["Sum", "Max"],
    "Sum": ["Mean", "Max"],
    "Rsqrt": ["Sqrt", "Square"],
    "Neg": ["Square", "Abs"],
}
FETCHES = ["y", "dx", "dgamma", "dbeta"]
MASKS = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")


def _with_gradient(norm: Callable, shape: tuple[int | None, ...]) -> v1.GraphDef:
    """y, and its gradient by all inputs, in float64: what differs then is no rounding."""

    def make() -> None:
        x = placeholder("x", shape, tf.float64)
        gamma = placeholder("gamma", (CHANNELS,), tf.float64)
        beta = placeholder("beta", (CHANNELS,), tf.float64)
        y = tf.identity(norm(x, gamma, beta), name="y")
        dy = placeholder("dy", shape, tf.float64)
        for name, of in zip(("dx", "dgamma", "dbeta"), (x, gamma, beta), strict=True):
            tf.identity(tf.gradients(y, of, dy)[0], name=name)

    return trace(make)


def _layer(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tf.Tensor:
    return layer_norm(x, -1, 1e-3, gamma, beta)


def _rms(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tf.Tensor:
    return x * tf.math.rsqrt(tf.reduce_mean(tf.square(x), -1, keepdims=True) + 1e-3) * gamma + beta


def _group(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tf.Tensor:
    sizes = tf.shape(x)
    grouped = tf.reshape(x, tf.stack([sizes[0], sizes[1], sizes[2], 2, CHANNELS // 2]))
    normal = layer_norm(grouped, [1, 2, 4], 1e-3)
    return tf.reshape(normal, sizes) * gamma + beta


GRAPHS = {
    "layer": (_layer, (None, CHANNELS)),
    "layer_of_known_size": (_layer, (5, CHANNELS)),
    "rms": (_rms, (None, None, CHANNELS)),
    "instance": (lambda x, g, b: layer_norm(x, [1, 2], 1e-3, g, b), (None, None, None, CHANNELS)),
    "group": (_group, (None, None, None, CHANNELS)),
}


def _change_numbers(node: v1.NodeDef, rng: random.Random) -> None:
    values = tf.make_ndarray(node.attr["value"].tensor)
    flat = values.ravel()
    changed = rng.choice([
        flat[:0], flat[:1], flat[:-1], flat[::-1], values * 0 + rng.randrange(-3, 5),
        np.append(flat, rng.randrange(-3, 5)), np.asarray(rng.randrange(-3, 9)),
    ])  # fmt: skip
    dtype = tf.as_dtype(values.dtype)
    node.attr["value"].tensor.CopyFrom(
        tf.make_tensor_proto(np.asarray(changed).astype(values.dtype), dtype=dtype)
    )


def _change(graph: v1.GraphDef, rng: random.Random) -> None:
    node = rng.choice([n for n in graph.node if n.op != "Placeholder"])
    like = [n for n in graph.node if n.op == node.op and len(n.input) == len(node.input)]
    masks = [mask for mask in MASKS if mask in node.attr]
    if node.op == "Const":
        _change_numbers(node, rng)
    elif masks and rng.random() < 0.5:
        node.attr[rng.choice(masks)].i = rng.randrange(4)
    elif "keep_dims" in node.attr and rng.random() < 0.3:
        node.attr["keep_dims"].b = not node.attr["keep_dims"].b
    elif node.op in SWAPS and rng.random() < 0.4:
        node.op = rng.choice(SWAPS[node.op])
    elif node.input:
        at = rng.randrange(len(node.input))
        node.input[at] = rng.choice(rng.choice(like).input)


def _same(got: np.ndarray, stock: np.ndarray) -> bool:
    if got.shape != stock.shape or got.dtype != stock.dtype:
        return False
    finite = np.isfinite(stock)
    scale = np.abs(stock[finite]).max(initial=1.0)  # a sum that is 0 is so up to rounding
    if scale > 1e12:  # what cancels there is rounding
        return True
    return np.allclose(got, stock, 1e-6, 1e-6 * scale, equal_nan=True)


def _run(graph: v1.GraphDef, feeds: dict[str, np.ndarray]) -> list[np.ndarray] | None:
    """y, dx, dgamma, dbeta; None where the graph does not run."""
    there = {node.name for node in graph.node}
    feeds = {name: value for name, value in feeds.items() if name in there}
    try:
        return run(graph, feeds, [f"{name}:0" for name in FETCHES])
    except (tf.errors.OpError, ValueError):
        return None


def _rewrite_broken(kind: str, rng: np.random.Generator, count: int) -> int:
    """How many of these still ran."""
    norm, shape = GRAPHS[kind]
    whole = _with_gradient(norm, shape)
    sizes = [size or 4 - i for i, size in enumerate(shape)]
    feeds = {name: rng.normal(size=sizes) for name in ("x", "dy")}
    feeds |= {name: rng.normal(size=CHANNELS) for name in ("gamma", "beta")}
    ran = 0
    for _ in range(count):
        seed = int(rng.integers(1 << 31))
        choice = random.Random(seed)
        graph = v1.GraphDef()
        graph.CopyFrom(whole)
        for _ in range(choice.choice([1, 1, 1, 2, 3])):
            _change(graph, choice)
        # What never runs would tell TensorFlow's shape inference about what does: a Reshape, say.
        graph = v1.graph_util.extract_sub_graph(graph, FETCHES)
        stock = _run(graph, feeds)
        if stock is None:  # TensorFlow's shape inference may crash on such graphs
            continue
        ran += 1
        after, report = rewrite(graph, fetches=FETCHES)
        got = _run(after, feeds)
        assert got is not None, f"{kind}, changes of seed {seed}: does not run any more\n{report}"
        for name, a, b in zip(FETCHES, got, stock, strict=True):
            assert _same(a, b), f"{kind}, changes of seed {seed}: another {name}\n{report}"
    return ran


@pytest.mark.parametrize("kind", GRAPHS)
def test_changed_graphs_compute_the_same(rng, kind: str) -> None:
    assert _rewrite_broken(kind, rng, 25) >= 5


@pytest.mark.slow
@pytest.mark.parametrize("kind", GRAPHS)
def test_many_changed_graphs_compute_the_same(rng, kind: str) -> None:
    assert _rewrite_broken(kind, rng, 2000) >= 400
