"""Small graphs with Transposes made by hand, rewritten offline and run with every optimizer off.

A placeholder and a fetched Identity stand for what cannot change its layout, such as a convolution.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

import nv_norms_rewriter
from nv_norms_rewriter import _library

v1 = tf.compat.v1
EPSILON = 1e-3
TO_FIRST = {3: [0, 2, 1], 4: [0, 3, 1, 2], 5: [0, 4, 1, 2, 3]}
TO_LAST = {3: [0, 2, 1], 4: [0, 2, 3, 1], 5: [0, 2, 3, 4, 1]}
NORMS = ("layer", "rms", "instance", "group")


def placeholder(name: str, shape: Sequence[int | None] | None, dtype=tf.float32) -> tf.Tensor:
    return v1.placeholder(dtype, shape, name=name)


def to_first(x: tf.Tensor, **kwargs) -> tf.Tensor:
    return tf.transpose(x, TO_FIRST[x.shape.rank], **kwargs)


def to_last(x: tf.Tensor, **kwargs) -> tf.Tensor:
    return tf.transpose(x, TO_LAST[x.shape.rank], **kwargs)


def _attributes(kind: str, last: bool, rank: int, axis, groups: int) -> dict:
    if kind in ("instance", "group"):
        format_ = {"data_format": "N...C" if last else "NC..."}
        return format_ if kind == "instance" else {"groups": groups, **format_}
    return {"axis": axis or ([-1] if last else [1 - rank])}


def norm(kind: str, x: tf.Tensor, gamma=None, beta=None, last=True, axis=None, groups=2, name=None):
    """(y, mean and rstd...) of a fused op; gamma and beta are float32."""
    ops = _library.ops()
    call = {
        "layer": ops.fused_layer_norm,
        "rms": ops.fused_rms_norm,
        "instance": ops.fused_instance_norm,
        "group": ops.fused_group_norm,
    }[kind]
    return call(
        x=x,
        scale=[] if gamma is None else [gamma],
        offset=[] if beta is None else [beta],
        out_type=x.dtype,
        U=tf.float64 if x.dtype == tf.float64 else tf.float32,
        epsilon=EPSILON,
        name=name,
        **_attributes(kind, last, x.shape.rank or 4, axis, groups),
    )


def norm_grad(kind: str, dy, x, gamma, statistics, last=True, axis=None, groups=2):
    """(dx, dgamma, dbeta) of a fused op."""
    ops = _library.ops()
    call = {
        "layer": ops.fused_layer_norm_grad,
        "rms": ops.fused_rms_norm_grad,
        "instance": ops.fused_instance_norm_grad,
        "group": ops.fused_group_norm_grad,
    }[kind]
    names = ("rstd",) if kind == "rms" else ("mean", "rstd")
    dx, dgamma, dbeta = call(
        dy=dy,
        x=x,
        scale=[] if gamma is None else [gamma],
        dx_type=x.dtype,
        param_type=tf.float32,
        num_dx=1,
        num_dscale=1,
        num_doffset=1,
        **dict(zip(names, statistics, strict=True)),
        **_attributes(kind, last, x.shape.rank, axis, groups),
    )
    return dx[0], dgamma[0], dbeta[0]


def oracle(kind: str, x, gamma=None, beta=None, last=True, axis=None, groups=2):
    """The same in float64 NumPy."""
    import oracle as formulas

    channel = -1 if last else 1
    if kind == "layer":
        return formulas.layer_norm(x, gamma, beta, axis=axis or [channel], epsilon=EPSILON).y
    if kind == "rms":
        return formulas.rms_norm(x, gamma, beta, axis=axis or [channel], epsilon=EPSILON).y
    if kind == "instance":
        return formulas.instance_norm(x, gamma, beta, channel_axis=channel, epsilon=EPSILON).y
    return formulas.group_norm(x, gamma, beta, groups, channel_axis=channel, epsilon=EPSILON).y


def trace(make: Callable[[], object]) -> v1.GraphDef:
    """The graph that `make` adds its ops to."""
    with tf.Graph().as_default() as graph:
        make()
    return graph.as_graph_def()


def transposes(graph: v1.GraphDef) -> int:
    return sum(node.op == "Transpose" for node in graph.node)


def nodes(graph: v1.GraphDef, op: str) -> list[v1.NodeDef]:
    return [node for node in graph.node if node.op == op]


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


def layouts(report: nv_norms_rewriter.Report) -> list[nv_norms_rewriter.Record]:
    return [record for record in report if record.kind == "layout"]


def check(
    graph: v1.GraphDef,
    feeds: Mapping[str, object],
    expected: Mapping[str, np.ndarray],
    before: int,
    after: int,
    tolerance: float = 2e-5,
) -> v1.GraphDef:
    """Rewrites the graph, which has so many Transposes before and after, and fetches `expected`.

    A second pass finds nothing. Returns the new graph.
    """
    fetches = list(expected)
    assert transposes(graph) == before
    rewritten, report = nv_norms_rewriter.rewrite(graph, fetches=fetches)
    for stage, each in (("before", graph), ("after", rewritten)):
        got = run(each, feeds, fetches)
        for name, value in zip(fetches, got, strict=True):
            np.testing.assert_allclose(
                value, expected[name], tolerance, tolerance, err_msg=f"{name} {stage}"
            )
    assert transposes(rewritten) == after, [n.name for n in nodes(rewritten, "Transpose")]
    assert sum(r.transposes[0] - r.transposes[1] for r in layouts(report)) <= before - after
    again, report = nv_norms_rewriter.rewrite(rewritten, fetches=fetches)
    assert again == rewritten and not report.fused
    return rewritten


def check_unchanged(
    graph: v1.GraphDef, fetches: Sequence[str], reason: str = ""
) -> nv_norms_rewriter.Report:
    """The graph stays as it is; `reason` is the only one in the report, or there is none."""
    rewritten, report = nv_norms_rewriter.rewrite(graph, fetches=fetches)
    assert rewritten == graph
    assert {record.reason for record in report} == ({reason} if reason else set()), report
    return report
