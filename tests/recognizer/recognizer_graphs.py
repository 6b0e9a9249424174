"""Small graphs made by hand, rewritten offline, and run as they are, with no other optimizer."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

import nv_norms_rewriter
from nv_norms_rewriter import rewrite
from stock import stock

v1 = tf.compat.v1
FUSED = ("FusedLayerNorm", "FusedInstanceNorm", "FusedGroupNorm", "FusedRMSNorm")


def trace(make: Callable[[], object]) -> v1.GraphDef:
    """The graph that `make` adds its ops to."""
    with tf.Graph().as_default() as graph:
        make()
    return graph.as_graph_def()


def placeholder(name: str, shape: Sequence[int | None] | None, dtype=tf.float32) -> tf.Tensor:
    return v1.placeholder(dtype, shape, name=name)


def moments(x: tf.Tensor, axis=-1) -> tuple[tf.Tensor, tf.Tensor]:
    mean = tf.reduce_mean(x, axis, keepdims=True, name="mean")
    return mean, tf.reduce_mean(tf.math.squared_difference(x, mean), axis, keepdims=True)


def layer_norm(x: tf.Tensor, axis=-1, epsilon=1e-3, gamma=None, beta=None) -> tf.Tensor:
    mean, variance = moments(x, axis)
    if not tf.is_tensor(epsilon):
        epsilon = tf.constant(epsilon, x.dtype)
    y = (x - mean) * tf.math.rsqrt(variance + epsilon)
    if gamma is not None:
        y = y * gamma
    return y if beta is None else y + beta


def node(graph_def: v1.GraphDef, name: str) -> v1.NodeDef:
    return next(n for n in graph_def.node if n.name == name)


def fused_nodes(graph_def: v1.GraphDef) -> list[v1.NodeDef]:
    return [n for n in graph_def.node if n.op in FUSED]


@functools.lru_cache(maxsize=4)
def _session(serialized: bytes, cpus: int) -> v1.Session:
    config = v1.ConfigProto(device_count={"CPU": cpus})
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = v1.OptimizerOptions.L0
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(v1.GraphDef.FromString(serialized), name="")
        return v1.Session(graph=graph, config=config)


def run(graph_def: v1.GraphDef, feeds: Mapping[str, object], fetch="y:0", cpus: int = 1):
    """Runs the graph with every optimizer off; `fetch` may be a list.

    The latest graphs are kept: to import one takes ten times as long as to run it.
    """
    session = _session(graph_def.SerializeToString(deterministic=True), cpus)
    return session.run(fetch, {f"{name}:0": value for name, value in feeds.items()})


def check(
    graph_def: v1.GraphDef,
    feeds: Mapping[str, object],
    expected: np.ndarray,
    fused: int,
    *,
    fetches: Sequence[str] = ("y",),
    tolerance: float = 2e-5,
    device: str | None = None,
    cpus: int = 1,
) -> tuple[v1.GraphDef, list]:
    """Rewrites the graph: `fused` norms are fused, and y:0 is as expected before and after.

    Returns the new graph and the records.
    """
    after, report = rewrite(graph_def, device, fetches)
    before = run(graph_def, feeds, cpus=cpus)
    np.testing.assert_allclose(before, expected, tolerance, tolerance, err_msg="before rewriting")
    got = run(after, feeds, cpus=cpus)
    assert got.shape == before.shape and got.dtype == before.dtype
    np.testing.assert_allclose(got, expected, tolerance, tolerance, err_msg="after rewriting")
    assert len(report.fused) == fused, f"fused {list(report.fused)}, refused {list(report.refused)}"
    assert len(fused_nodes(after)) == fused
    return after, list(report)


def stock_and_fused(
    step: Callable, signature: Sequence[tf.TensorSpec], values: Sequence[np.ndarray], jit: bool
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """What a function gives with the rewriter off, and on, which the report then tells of alone.

    `jit`: the latter compiled by XLA, where all that is found is fused.
    """

    def results(jit: bool) -> list[np.ndarray]:
        function = tf.function(step, input_signature=signature, jit_compile=jit)
        return [each.numpy() for each in function(*map(tf.constant, values))]

    before = stock(lambda: results(jit=False))
    nv_norms_rewriter.clear_report()
    nv_norms_rewriter.configure(xla="all")
    try:
        return before, results(jit)
    finally:
        nv_norms_rewriter.configure(xla="auto")


def fused_as_stock(
    step: Callable, known: Sequence, values: Sequence[np.ndarray], jit: bool = False
) -> list[str]:
    """The directions of what is fused in a function of tensors of which these shapes are known.

    What it gives must be what stock TensorFlow gives.
    """
    signature = [tf.TensorSpec(shape) for shape in known]
    for want, got in zip(*stock_and_fused(step, signature, values, jit), strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, 1e-4, 1e-4)
    return [record.direction for record in nv_norms_rewriter.report().fused]
