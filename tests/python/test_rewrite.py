"""rewrite(): the pass offline, on a GraphDef."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import nv_norms_rewriter
import oracle
from nv_norms_rewriter import rewrite


def _graph(shape: tuple[int | None, ...] = (4, 8)) -> tf.compat.v1.GraphDef:
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, shape, name="x")
        gamma = tf.constant(np.linspace(0.5, 2.0, 8), tf.float32, name="gamma")
        mean = tf.reduce_mean(x, -1, keepdims=True, name="mean")
        variance = tf.reduce_mean(tf.math.squared_difference(x, mean), -1, keepdims=True)
        xhat = (x - mean) * tf.math.rsqrt(variance + 1e-3)
        tf.nn.relu(tf.multiply(xhat, gamma, name="y"), name="out")
    return graph.as_graph_def()


def _ops(graph_def: tf.compat.v1.GraphDef) -> list[str]:
    return [node.op for node in graph_def.node]


def _run(graph_def: tf.compat.v1.GraphDef, fetches: list[str], x: np.ndarray) -> list[np.ndarray]:
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
        with tf.compat.v1.Session(graph=graph) as session:
            return session.run([f"{name}:0" for name in fetches], {"x:0": x})


@pytest.mark.parametrize("device", [None, "CPU", "cpu", "/device:CPU:0"])
def test_fused_graph_computes_the_norm(rng: np.random.Generator, device: str | None) -> None:
    before = _graph((None, 8))
    after, report = rewrite(before, device, ["out"])
    assert _ops(after).count("FusedLayerNorm") == 1 and "Rsqrt" not in _ops(after)
    assert [(r.kind, r.fused) for r in report] == [("layer_norm", True)]
    x = rng.normal(5.0, 2.0, (3, 8)).astype(np.float32)
    (out,) = _run(after, ["out"], x)
    expected = oracle.layer_norm(x, np.linspace(0.5, 2.0, 8), None, -1, 1e-3).y
    np.testing.assert_allclose(out, np.maximum(expected, 0), 1e-5, 1e-5)


def test_argument_is_not_changed_and_report_does_not_grow() -> None:
    before = _graph()
    copy = before.SerializeToString(deterministic=True)
    nv_norms_rewriter.clear_report()
    rewrite(before, fetches=["out"])
    assert before.SerializeToString(deterministic=True) == copy
    assert len(nv_norms_rewriter.report()) == 0


def test_rewrites_while_disabled() -> None:
    with nv_norms_rewriter.disabled():
        after, _ = rewrite(_graph(), fetches=["out"])
        assert not nv_norms_rewriter.is_enabled()
    assert "FusedLayerNorm" in _ops(after)


def test_second_rewrite_finds_nothing_to_do() -> None:
    once, _ = rewrite(_graph(), fetches=["out"])
    twice, report = rewrite(once, fetches=["out"])
    assert twice == once and len(report) == 0


@pytest.mark.parametrize("fetches", [["out", "y"], ("y:0", "out:0"), iter(["out", "mean", "y"])])
def test_fetches_keep_their_names_and_values(rng: np.random.Generator, fetches) -> None:
    fetches = list(fetches)
    after, report = rewrite(_graph(), fetches=fetches)
    names = [fetch.partition(":")[0] for fetch in fetches]
    x = rng.normal(5.0, 2.0, (4, 8)).astype(np.float32)
    for got, expected in zip(_run(after, names, x), _run(_graph(), names, x), strict=True):
        np.testing.assert_allclose(got, expected, 1e-5, 1e-5)
    assert len(report.fused) == 1


def test_without_fetches_those_are_kept_that_nobody_reads() -> None:
    expected, _ = rewrite(_graph())
    for fetches in (None, []):
        after, report = rewrite(_graph(), fetches=fetches)
        assert after == expected and len(report.fused) == 1
    assert [node.name for node in expected.node][-1] == "out"


def test_graph_without_norms_comes_back_as_it_is() -> None:
    with tf.Graph().as_default() as graph:
        tf.nn.softmax(tf.compat.v1.placeholder(tf.float32, (4, 8)), name="out")
    after, report = rewrite(graph.as_graph_def(), fetches=["out"])
    assert after == graph.as_graph_def() and len(report) == 0


def test_empty_graph() -> None:
    after, report = rewrite(tf.compat.v1.GraphDef())
    assert not after.node and len(report) == 0


def test_wrong_arguments_are_named() -> None:
    graph = _graph()
    with pytest.raises(TypeError, match="graph_def: expected a .*GraphDef, got Graph "):
        rewrite(tf.Graph())
    with pytest.raises(TypeError, match="fetches: .* single string 'out'"):
        rewrite(graph, fetches="out")
    with pytest.raises(TypeError, match="fetches: expected names, got int"):
        rewrite(graph, fetches=[1])
    with pytest.raises(TypeError, match=r"fetches: expected None or a sequence of .* int \(5\)"):
        rewrite(graph, fetches=5)
    with pytest.raises(ValueError, match="no node named 'nope'"):
        rewrite(graph, fetches=["out", "nope:0"])
    with pytest.raises(ValueError, match=r"'out' has no output 1 \(of 1\), got 'out:1'"):
        rewrite(graph, fetches=["out:1"])
    with pytest.raises(TypeError, match="device: expected None or a string, got int"):
        rewrite(graph, device=0)
    with pytest.raises(ValueError, match="""names like "y" or "y:0", got 'out:x'"""):
        rewrite(graph, fetches=["out:x"])
    for device in ("TPU", "", "GPU:0", "/job:worker", "xdevice:CPU:0", "/device:CPU:x"):
        with pytest.raises(ValueError, match='device: expected "CPU", "GPU"'):
            rewrite(graph, device=device)


def test_broken_graph_raises_or_comes_back_unchanged() -> None:
    graph = _graph()
    next(node for node in graph.node if node.op == "Rsqrt").input[0] = "missing"
    try:
        after, report = rewrite(graph, fetches=["out"])
    except RuntimeError as error:
        assert str(error)
    else:
        assert after == graph and not report.fused


@pytest.mark.parametrize(
    "kept", [{"T", "dtype", "DstT", "SrcT", "Tidx", "value"}, set()], ids=["some", "none"]
)
def test_graph_without_attributes_that_have_their_default(
    rng: np.random.Generator, kept: set[str]
) -> None:
    """As a SavedModel that was written with strip_default_attrs."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, (2, 4, 4, 4), name="x")
        image = tf.transpose(x, [0, 2, 3, 1])
        mean, variance = tf.nn.moments(image, [1, 2], keepdims=True)
        gamma = tf.constant([1.0, 2.0, 3.0, 4.0])
        y = tf.nn.batch_normalization(image, mean, variance, None, gamma, 1e-3)
        tf.transpose(y, [0, 3, 1, 2], name="out")
    before = graph.as_graph_def()
    defaults = {op.name: op for op in (o.op_def for o in graph.get_operations())}
    for node in before.node:
        for attr in defaults[node.op].attr:
            same = attr.HasField("default_value") and node.attr[attr.name] == attr.default_value
            if same and attr.name not in kept:
                del node.attr[attr.name]
    after, report = rewrite(before, fetches=["out"])
    assert report.counts == {"instance_norm forward": 1}
    value = rng.normal(size=(2, 4, 4, 4)).astype(np.float32)
    (out,) = _run(after, ["out"], value)
    exact = oracle.instance_norm(value, np.arange(1.0, 5.0), None, 1, 1e-3).y
    np.testing.assert_allclose(out, exact, 1e-5, 1e-5)
