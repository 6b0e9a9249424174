"""Graphs as a plugin was handed them on a machine with a GPU, after TensorFlow's layout pass.

captured/h200_convnet_*: Conv2D, GroupNormalization(groups=-1), Conv2D, LayerNormalization, Dense,
LayerNormalization of Keras 3, fit(jit_compile=False) or inference, float32. In training the layout
pass has turned the convolutions to NCHW, and the first LayerNormalization with them: its axes go
through DataFormatDimMap, its gamma and beta through transposes. captured/h200_layer_train_*: one
LayerNormalization's gradient: its statistics are there, its output is not. _0 and _1: first and
second iteration of the meta optimizer.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import tensorflow as tf

import nv_norms_rewriter

FOLDER = Path(__file__).parent / "captured"

_THREE = {"instance_norm": 1, "layer_norm": 2}
EXPECTED = {  # forward, backward
    "h200_convnet_infer_0": (_THREE, {}),
    "h200_convnet_train_0": (_THREE, _THREE),
    "h200_convnet_train_1": (_THREE, _THREE),
    "h200_layer_train_0": ({}, {"layer_norm": 1}),
    "h200_layer_train_1": ({}, {"layer_norm": 1}),
}


def assert_importable(graph_def: tf.compat.v1.GraphDef) -> None:
    copy = tf.compat.v1.GraphDef()
    copy.CopyFrom(graph_def)
    for node in copy.node:
        node.attr.pop("_output_shapes", None)  # grappler leaves stale ones behind
    with tf.Graph().as_default():
        tf.graph_util.import_graph_def(copy, name="")


@pytest.mark.parametrize("name", EXPECTED)
def test_captured_norms_are_fused(name: str) -> None:
    before = tf.compat.v1.GraphDef.FromString((FOLDER / f"{name}.pb").read_bytes())
    assert_importable(before)
    fetches = [node.name for node in before.node if node.op == "_Retval"]
    after, report = nv_norms_rewriter.rewrite(before, fetches=fetches)
    for direction, expected in zip(("forward", "backward"), EXPECTED[name], strict=True):
        records = [record for record in report.fused if record.direction == direction]
        assert Counter(record.kind for record in records) == expected, report
        assert all(len(r.outputs) == (1 if direction == "forward" else 3) for r in records), report
    assert not report.refused
    assert_importable(after)
    # The relu behind the GroupNormalization, and its gradient.
    inside = [r.kind for r in report.fused if r.negative_slope == 0]
    assert inside == ["instance_norm"] * sum("instance_norm" in kinds for kinds in EXPECTED[name])
    assert not [node.name for node in after.node if "Relu" in node.op]
    again, report = nv_norms_rewriter.rewrite(after, fetches=fetches)
    assert not report.fused and not report.refused


def test_the_layout_pass_has_permuted_axes_and_shapes() -> None:
    graph = tf.compat.v1.GraphDef.FromString((FOLDER / "h200_convnet_train_0.pb").read_bytes())
    assert {node.op for node in graph.node} >= {"DataFormatDimMap", "DataFormatVecPermute"}


def test_every_captured_graph_has_an_expectation() -> None:
    assert {file.stem for file in FOLDER.glob("*.pb")} == set(EXPECTED)
