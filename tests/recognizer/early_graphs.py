"""Norms for the pass before Grappler, and the graphs that run."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

import nv_norms_rewriter

EPSILON = 1e-6  # TensorFlow's remapper takes 0.001 where it loses it


def run(traced, *args):
    """(result, ops of the graph that ran) of a function that runs for the first time."""
    # disable_run_metadata() would go on to collect graphs, in the tests of other files.
    context.context().enable_graph_collection()
    try:
        result = traced(*args)
    finally:
        graphs = context.export_run_metadata().function_graphs
        context.context().disable_graph_collection()
    partitions = [p for g in graphs for p in g.partition_graphs]
    bodies = [f.node_def for p in partitions for f in p.library.function]
    return result, [n.op for nodes in [p.node for p in partitions] + bodies for n in nodes]


def fused() -> list[str]:
    return [record.kind for record in nv_norms_rewriter.report() if record.fused]


def truth(x, mean_axes, variance_axes, gamma, beta, epsilon=EPSILON):
    x = np.float64(x)
    m = x.mean(tuple(mean_axes), keepdims=True)
    v = ((x - m) ** 2).mean(tuple(variance_axes), keepdims=True)
    return (x - m) / np.sqrt(v + epsilon) * gamma + beta


ROOTS = {
    "sqrt": lambda centred, v: centred / tf.sqrt(v),
    "pow": lambda centred, v: centred / v**0.5,
    "rsqrt": lambda centred, v: centred * tf.math.rsqrt(v),
}


def as_the_formula(root, mean_axes, variance_axes, gamma, beta):
    def norm(x):
        m = tf.reduce_mean(x, mean_axes, keepdims=True)
        v = tf.reduce_mean(tf.math.squared_difference(x, m), variance_axes, keepdims=True)
        return ROOTS[root](x - m, v + EPSILON) * gamma + beta

    return norm
