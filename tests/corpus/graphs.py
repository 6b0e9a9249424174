"""GraphDefs made by hand, for tests of the edit: every name, device and edge is chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import tensorflow as tf

EPSILON = 1e-3


def graph_of(make: Callable[[], None]) -> tf.compat.v1.GraphDef:
    """What `make` adds to the default graph."""
    with tf.Graph().as_default() as graph:
        make()
    return graph.as_graph_def()


def parameters(width: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.uniform(0.5, 1.5, width).astype("float32"), rng.normal(size=width).astype("float32")


def layer_norm(x: tf.Tensor, seed: int = 0, name: str = "norm") -> tf.Tensor:
    """A layer norm over the last axis, its nodes called NAME/mean, NAME/rstd, ..., NAME/y."""
    gamma, beta = parameters(int(x.shape[-1]), seed)
    with tf.name_scope(name):
        mean = tf.reduce_mean(x, -1, keepdims=True, name="mean")
        centered = tf.subtract(x, mean, name="centered")
        variance = tf.reduce_mean(tf.square(centered), -1, keepdims=True, name="variance")
        rstd = tf.math.rsqrt(tf.add(variance, EPSILON), name="rstd")
        xhat = tf.multiply(centered, rstd, name="xhat")
        scaled = tf.multiply(xhat, tf.constant(gamma, name="gamma"), name="scaled")
        return tf.add(scaled, tf.constant(beta, name="beta"), name="y")


def run(graph_def: tf.compat.v1.GraphDef, fetches: Iterable[str], feeds: dict[str, np.ndarray]):
    """Imports and runs a graph as it is: no optimizer touches it."""
    (values,) = run_all(graph_def, fetches, [feeds])
    return values


def run_all(
    graph_def: tf.compat.v1.GraphDef,
    fetches: Iterable[str],
    draws: Iterable[dict[str, np.ndarray]],
) -> list[list[np.ndarray]]:
    """As run(), once for each of several feeds."""
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(graph_def, name="")
    config = tf.compat.v1.ConfigProto(allow_soft_placement=True)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    with tf.compat.v1.Session(graph=graph, config=config) as session:
        return [session.run(list(fetches), feeds) for feeds in draws]


def by_name(graph_def: tf.compat.v1.GraphDef) -> dict:
    return {node.name: node for node in graph_def.node}


def fused_nodes(graph_def: tf.compat.v1.GraphDef) -> list:
    kinds = ("FusedLayerNorm", "FusedInstanceNorm", "FusedGroupNorm", "FusedRMSNorm")
    return [node for node in graph_def.node if node.op in kinds]


def ancestors(graph_def: tf.compat.v1.GraphDef, name: str) -> set[str]:
    """Names of all nodes that run before a node, over data and control edges."""
    nodes, seen, todo = by_name(graph_def), set(), [name]
    while todo:
        for edge in nodes[todo.pop()].input:
            source = edge.lstrip("^").partition(":")[0]
            if source not in seen:
                seen.add(source)
                todo.append(source)
    return seen
