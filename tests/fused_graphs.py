"""Small graphs of fused ops made by hand, and a session with every optimizer off to run them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import tensorflow as tf

from nv_norms_rewriter import _library

v1 = tf.compat.v1
EPSILON = 1e-3


def placeholder(name: str, shape: Sequence[int | None] | None, dtype=tf.float32) -> tf.Tensor:
    return v1.placeholder(dtype, shape, name=name)


def _offset(kind: str) -> dict:
    """Of a gradient op: only an activation's reads one."""
    return {"offset": []} if kind in ("instance", "group") else {}


def _attributes(kind: str, last: bool, rank: int, axis, groups: int) -> dict:
    if kind in ("instance", "group"):
        format_ = {"data_format": "N...C" if last else "NC..."}
        return format_ if kind == "instance" else {"groups": groups, **format_}
    return {"axis": axis or ([-1] if last else [1 - rank])}


def norm(
    kind: str,
    x: tf.Tensor,
    gamma=None,
    beta=None,
    last=True,
    axis=None,
    groups=2,
    name=None,
    out_type=None,
):
    """(y, mean and rstd...) of a fused op; gamma and beta are float32."""
    return getattr(_library.ops(), f"fused_{kind}_norm")(
        x=x,
        scale=[] if gamma is None else [gamma],
        offset=[] if beta is None else [beta],
        out_type=out_type or x.dtype,
        U=tf.float64 if x.dtype == tf.float64 else tf.float32,
        epsilon=EPSILON,
        name=name,
        **_attributes(kind, last, x.shape.rank or 4, axis, groups),
    )


def norm_grad(
    kind: str,
    dy,
    x,
    gamma,
    statistics,
    last=True,
    axis=None,
    groups=2,
    name=None,
    dx_type=None,
    param_type=tf.float32,
):
    """(dx, dgamma, dbeta) of a fused op."""
    names = ("rstd",) if kind == "rms" else ("mean", "rstd")
    dx, dgamma, dbeta = getattr(_library.ops(), f"fused_{kind}_norm_grad")(
        dy=dy,
        x=x,
        scale=[] if gamma is None else [gamma],
        dx_type=dx_type or x.dtype,
        param_type=param_type,
        num_dx=1,
        num_dscale=1,
        num_doffset=1,
        name=name,
        **_offset(kind),
        **dict(zip(names, statistics, strict=True)),
        **_attributes(kind, last, x.shape.rank, axis, groups),
    )
    return dx[0], dgamma[0], dbeta[0]


def trace(make: Callable[[], object]) -> v1.GraphDef:
    """The graph that `make` adds its ops to."""
    with tf.Graph().as_default() as graph:
        make()
    return graph.as_graph_def()


def ops_behind(graph: v1.GraphDef, names: Iterable[str]) -> set[str]:
    """The ops that run for these nodes. (extract_sub_graph takes what is colocated, too.)"""
    nodes = {node.name: node for node in graph.node}
    seen, waiting = set(), list(names)
    while waiting:
        name = waiting.pop().lstrip("^").partition(":")[0]
        if name not in seen:
            seen.add(name)
            waiting += nodes[name].input
    return {nodes[name].op for name in seen}


def run(graph: v1.GraphDef, feeds: Mapping[str, object], fetches: Sequence[str]) -> list:
    config = v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = v1.OptimizerOptions.L0
    with tf.Graph().as_default() as imported:
        tf.import_graph_def(graph, name="")
        with v1.Session(graph=imported, config=config) as session:
            return session.run(
                [f"{name}:0" for name in fetches],
                {f"{name}:0": value for name, value in feeds.items()},
            )
