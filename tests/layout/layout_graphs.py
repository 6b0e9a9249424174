"""Small graphs with Transposes made by hand, rewritten offline and run with every optimizer off.

A placeholder and a fetched Identity stand for what cannot change its layout, such as a convolution.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

import nv_norms_rewriter
from fused_graphs import EPSILON, run

v1 = tf.compat.v1
TO_FIRST = {3: [0, 2, 1], 4: [0, 3, 1, 2], 5: [0, 4, 1, 2, 3]}
TO_LAST = {3: [0, 2, 1], 4: [0, 2, 3, 1], 5: [0, 2, 3, 4, 1]}
NORMS = ("layer", "rms", "instance", "group")


def to_first(x: tf.Tensor, **kwargs) -> tf.Tensor:
    return tf.transpose(x, TO_FIRST[x.shape.rank], **kwargs)


def to_last(x: tf.Tensor, **kwargs) -> tf.Tensor:
    return tf.transpose(x, TO_LAST[x.shape.rank], **kwargs)


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


def transposes(graph: v1.GraphDef) -> int:
    return sum(node.op == "Transpose" for node in graph.node)


def nodes(graph: v1.GraphDef, op: str) -> list[v1.NodeDef]:
    return [node for node in graph.node if node.op == op]


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
