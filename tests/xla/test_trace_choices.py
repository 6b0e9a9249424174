"""What is left to XLA and why, what the options do, and that no trace fails because of us."""

from __future__ import annotations

import re
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from traced import HERE, Layer, close, found, ops_in, result

import nv_norms_rewriter
import oracle
from nv_norms_rewriter import _library, _process, _trace_describe, _trace_graph, _xla_rule
from stock import stock

pytestmark = pytest.mark.usefixtures("every_norm")

SHAPE = (4, 6, 10)


@pytest.fixture
def layers(rng: np.random.Generator) -> list[Layer]:
    return [Layer(rng, SHAPE[-1]) for _ in range(3)]


@pytest.fixture
def x(rng: np.random.Generator) -> tf.Tensor:
    return tf.constant(rng.normal(1.0, 2.0, SHAPE), tf.float32)


def step(layers: list[Layer]) -> Any:
    """y and its gradients through three norms with a residual, in one function."""

    @tf.function(jit_compile=True, autograph=False)
    def function(x: tf.Tensor) -> list[tf.Tensor]:
        variables = [v for layer in layers for v in (layer.gamma, layer.beta)]
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layers[0](x)
            y = layers[1](y) + tf.tanh(y)
            y = layers[2](tf.nn.relu(y))
            loss = tf.reduce_sum(tf.sin(y))
        return [y, *tape.gradient(loss, [x, *variables])]

    return function


def assert_same(got: list[tf.Tensor], expected: list[tf.Tensor]) -> None:
    for actual, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(actual, other, 1e-4, 2e-5 * np.abs(other).max())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("left", [(), (0,), (1,), (2,), (0, 2), (0, 1, 2)])
def test_some_are_left_to_xla(
    layers: list[Layer], x: tf.Tensor, left: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    norms: list[_xla_rule.Norm] = []

    def why_left(norm: _xla_rule.Norm) -> str:
        norms.append(norm)
        return "It does not pay." if len(norms) - 1 in left else ""

    monkeypatch.setattr(_xla_rule, "why_left", why_left)
    nv_norms_rewriter.configure(xla="auto")
    function = step(layers)
    assert_same(function(x), stock(lambda: step(layers)(x)))
    for norm in norms:
        assert (norm.kind, norm.gradient, norm.shape) == ("layer_norm", "fused", SHAPE)
        assert (norm.dtype, [axis % 3 for axis in norm.axes]) == ("float32", [2])
        assert norm.device_type == HERE
    second = "AddV2" if 0 in left else ""
    assert [norm.producer for norm in norms] == ["Placeholder", second, "Relu"]
    assert "Tanh" in norms[0].readers and "Sin" in norms[2].readers
    report = nv_norms_rewriter.report()
    assert (len(report.fused), len(report.refused)) == (6 - 2 * len(left), 2 * len(left))
    assert all((r.reason, r.detail) == ("left_to_xla", "It does not pay.") for r in report.refused)
    graph = function.get_concrete_function(x).graph
    made = [op.type for op in graph.get_operations()]
    assert made.count("FusedLayerNorm") == made.count("FusedLayerNormGrad") == 3 - len(left)
    # Nothing is computed both ways.
    needed = [op.type for op in _trace_describe.with_sources(t.op for t in graph.outputs)]
    assert needed.count("Rsqrt") == needed.count("RsqrtGrad") == len(left)


def test_neighbours_behind_views_and_custom_gradients(
    layers: list[Layer], x: tf.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """silu: one op hands both its result and its input on, for its gradient."""
    norms: list[_xla_rule.Norm] = []
    monkeypatch.setattr(_xla_rule, "why_left", lambda norm: norms.append(norm) or "no")
    nv_norms_rewriter.configure(xla="auto")

    @tf.function(jit_compile=True, autograph=False)
    def function(x: tf.Tensor) -> tf.Tensor:
        y = layers[0](tf.nn.silu(tf.sin(x)))
        h = tf.concat([tf.nn.silu(tf.cast(y, tf.float16))] * 2, -1)
        return layers[1](tf.reshape(tf.cast(h, tf.float32)[..., : x.shape[-1]], x.shape))

    function.get_concrete_function(x)
    assert [norm.producer for norm in norms] == ["Mul", "StridedSlice"]
    assert norms[0].readers == ("Mul",) and norms[1].readers == ()


@pytest.mark.parametrize("differentiated", [False, True])
def test_a_sum_that_goes_on_beside_the_norm(
    layers: list[Layer], x: tf.Tensor, differentiated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what is summed again is a skip: not what a norm and its own gradient read."""
    norms: list[_xla_rule.Norm] = []
    monkeypatch.setattr(_xla_rule, "why_left", lambda norm: norms.append(norm) or "no")
    nv_norms_rewriter.configure(xla="auto")
    first, second, third = layers
    matrix = tf.eye(x.shape[-1])

    @tf.function(jit_compile=True, autograph=False)
    def function(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            h = tf.sin(x) + tf.cos(x)
            h = tf.reshape(h, [-1, x.shape[-1]]) + tf.matmul(
                tf.reshape(first(h), [-1, x.shape[-1]]), matrix
            )
            y = third(tf.cos(second(tf.abs(h))))
        return [y, *([tape.gradient(y, x)] if differentiated else [])]

    function.get_concrete_function(x)
    assert [(norm.producer, norm.skip) for norm in norms] == [
        ("AddV2", True),
        ("Abs", False),
        ("Cos", False),
    ]


@pytest.mark.parametrize("convolves", [True, False])
def test_bias_of_a_convolution_is_the_convolutions(
    convolves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """XLA computes it in one kernel, and need not add it where the norm reads it."""
    norms: list[_xla_rule.Norm] = []
    monkeypatch.setattr(_xla_rule, "why_left", lambda norm: norms.append(norm) or "no")
    nv_norms_rewriter.configure(xla="auto")
    layer = keras.layers.GroupNormalization(2)
    layer.build((2, 6, 6, 4))

    @tf.function(jit_compile=True, autograph=False)
    def function(x: tf.Tensor) -> tf.Tensor:
        h = tf.nn.conv2d(x, tf.ones((3, 3, 4, 4)), 1, "SAME") if convolves else tf.sin(x)
        return tf.sin(layer(tf.nn.bias_add(h, tf.ones(4))))

    function.get_concrete_function(tf.zeros((2, 6, 6, 4)))
    assert [norm.producer for norm in norms] == ["Conv2D" if convolves else "BiasAdd"]


@pytest.mark.parametrize("of_each_sample", [(), ("scale",), ("shift",), ("scale", "shift")])
def test_scales_and_shifts_of_each_sample(
    of_each_sample: tuple[str, ...], rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both run in the fused op, as parameters do; one beside a parameter runs beside the op."""
    norms: list[_xla_rule.Norm] = []
    monkeypatch.setattr(_xla_rule, "why_left", lambda norm: norms.append(norm) or "no")
    nv_norms_rewriter.configure(xla="auto")
    x = tf.constant(rng.normal(size=(3, 5, 7, 8)), tf.float32)
    scale, shift = (
        tf.Variable(
            rng.normal(1, 0.3, size=(3, 1, 1, 8) if name in of_each_sample else (8,)), dtype=x.dtype
        )
        for name in ("scale", "shift")
    )

    @tf.function(jit_compile=True, autograph=False)
    def function(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            mean, variance = tf.nn.moments(x, [-1], keepdims=True)
            y = tf.nn.batch_normalization(x, mean, variance, shift, scale, 1e-3)
            loss = tf.reduce_sum(tf.sin(y))
        return tape.gradient(loss, [scale, shift])

    function.get_concrete_function(x)
    assert [norm.goes_on for norm in norms] == [len(of_each_sample) == 1]


@pytest.mark.parametrize("left", [False, True])
def test_a_norm_behind_another(
    layers: list[Layer], x: tf.Tensor, left: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """XLA can compute neither with a fused op."""
    norms: list[_xla_rule.Norm] = []
    monkeypatch.setattr(_xla_rule, "why_left", lambda norm: norms.append(norm) or "no" * left)
    nv_norms_rewriter.configure(xla="auto")

    @tf.function(jit_compile=True, autograph=False)
    def function(x: tf.Tensor) -> tf.Tensor:
        return layers[1](tf.identity(layers[0](tf.sin(x))))

    function.get_concrete_function(x)
    assert [norm.producer for norm in norms] == ["Sin", "AddV2" if left else ""]


@pytest.mark.parametrize("choice,expected", [("all", 3), ("none", 0)])
def test_all_or_none(
    layers: list[Layer],
    x: tf.Tensor,
    choice: str,
    expected: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    why = "It does not pay." if choice == "all" else ""
    monkeypatch.setattr(_xla_rule, "why_left", lambda norm: why)
    nv_norms_rewriter.configure(xla=choice)
    function = step(layers)
    assert_same(function(x), stock(lambda: step(layers)(x)))
    assert (found(), found("backward")) == (expected, expected)
    assert len(nv_norms_rewriter.report()) == 6
    assert bool(ops_in(function.get_concrete_function(x).graph)) == bool(expected)


GAMMA = np.arange(1.0, 6.0)


def transposed(x: tf.Tensor) -> tf.Tensor:
    """An instance norm channels last, between ops channels first; sizes do not tell which."""
    h = tf.transpose(tf.nn.relu(x), [0, 2, 3, 1])
    mean, variance = tf.nn.moments(h, [1, 2], keepdims=True)
    h = (h - mean) * tf.math.rsqrt(variance + 1e-3) * tf.constant(GAMMA, tf.float32)
    return tf.tanh(tf.transpose(tf.nn.relu(h), [0, 3, 1, 2]))


@pytest.mark.parametrize("choice,fused", [("all", 1), ("none", 0)])
def test_layouts_stay(rng: np.random.Generator, choice: str, fused: int) -> None:
    x = rng.normal(size=(2, 5, 5, 5))
    nv_norms_rewriter.configure(xla=choice)
    function = tf.function(transposed, jit_compile=True, autograph=False)
    h = np.maximum(x, 0)
    xhat = oracle.layer_norm(h, None, None, (2, 3), 1e-3).y
    y = np.maximum(xhat * GAMMA[:, None, None], 0)
    close(function(tf.constant(x, tf.float32)), np.tanh(y))
    assert [(r.kind, r.fused) for r in nv_norms_rewriter.report()] == [("instance_norm", fused)]


@pytest.mark.parametrize("choice", ["all", "none"])
@pytest.mark.parametrize("losses", [1, 2])
def test_gradients_alone_and_of_two_losses(
    layers: list[Layer], x: tf.Tensor, rng: np.random.Generator, choice: str, losses: int
) -> None:
    """Of one loss, y is not asked for, and only the gradient is found."""
    dys = [rng.normal(size=SHAPE) for _ in range(losses)]

    @tf.function(jit_compile=True, autograph=False)
    def function(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = layers[0](x)
        given = [tf.constant(dy, tf.float32) for dy in dys]
        gradients = [tape.gradient(y, x, output_gradients=dy) for dy in given]
        return gradients if losses == 1 else [y, *gradients]

    nv_norms_rewriter.configure(xla=choice)
    got = function(x)
    exact = [layers[0].exact_gradients(x, dy)[0] for dy in dys]
    for actual, expected in zip(got[-losses:], exact, strict=True):
        close(actual, expected)
    report = nv_norms_rewriter.report()
    assert [r.direction for r in report].count("backward") == losses
    assert {(r.fused, r.reason) for r in report} == {
        (True, "") if choice == "all" else (False, "left_to_xla")
    }
    made = ops_in(function.get_concrete_function(x).graph)
    assert made == ({"FusedLayerNorm", "FusedLayerNormGrad"} if choice == "all" else set())


def hlo(function: Any, *inputs: Any) -> str:
    """The compiled function, without names and numbers that differ from trace to trace."""
    text = function.experimental_get_compiler_ir(*inputs)(stage="optimized_hlo")
    text = re.sub(r"_function_\d+__", "_function_", text)
    text = re.sub(r"fingerprint_before_lhs=\"\w+\"", "", text)  # of the names
    return re.sub(r", metadata=\{[^}]*\}", "", text)


def test_what_is_left_is_compiled_as_without_us(layers: list[Layer], x: tf.Tensor) -> None:
    with nv_norms_rewriter.disabled():
        stock = hlo(step(layers), x)
    for choice in ("none", "auto"):  # auto: too small to pay
        nv_norms_rewriter.configure(xla=choice)
        nv_norms_rewriter.clear_report()
        function = step(layers)
        assert hlo(function, x) == stock
        assert len(nv_norms_rewriter.report().refused) == 6
    nv_norms_rewriter.configure(xla="all")
    assert "nv_norms_forward" in hlo(step(layers), x)


@pytest.mark.parametrize("rows,size,fused", [(512, 768, True), (4, 10, False)])
def test_rule_decides(rng: np.random.Generator, rows: int, size: int, fused: bool) -> None:
    nv_norms_rewriter.configure(xla="auto")
    with tf.device("/CPU:0"):
        layer = Layer(rng, size)
        x = tf.constant(rng.normal(size=(rows, size)), tf.float32)
        close(tf.function(lambda x: layer(x), jit_compile=True, autograph=False)(x), layer.exact(x))
    (record,) = nv_norms_rewriter.report()
    assert record.fused == fused and record.where == "xla"
    if not fused:
        assert record.reason == "left_to_xla" and "fewer than 50,000" in record.detail
        assert "left_to_xla" in str(nv_norms_rewriter.report())


def test_environment_variable_and_configure() -> None:
    code = """
import json
import tensorflow as tf
import nv_norms_rewriter

def trace():
    def norm(x):
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        return (x - mean) * tf.math.rsqrt(variance + 1e-3)
    tf.function(norm, jit_compile=True).get_concrete_function(tf.TensorSpec([2, 3]))
    return nv_norms_rewriter.report()[-1].reason

first = trace()
nv_norms_rewriter.configure(xla="all")
print(json.dumps([first, trace()]))
"""
    assert result(code, NV_NORMS_XLA="none")[0] == ["left_to_xla", ""]


def test_wrong_options_are_refused() -> None:
    with pytest.raises(ValueError, match="xla: expected 'auto' or 'all' or 'none', got <tf.Tensor"):
        nv_norms_rewriter.configure(xla=tf.constant("all"))
    with pytest.raises(ValueError, match="xla: expected 'auto' or 'all' or 'none', got 'some'"):
        nv_norms_rewriter.configure(xla="some")
    with pytest.raises(ValueError, match="saved_models: expected 'stock' or 'fused', got 1"):
        nv_norms_rewriter.configure(saved_models=1)  # type: ignore[arg-type]


def test_disabled(layers: list[Layer], x: tf.Tensor) -> None:
    with nv_norms_rewriter.disabled():
        function = tf.function(lambda x: layers[0](x), jit_compile=True, autograph=False)
        close(function(x), layers[0].exact(x))
    assert not ops_in(function.get_concrete_function(x).graph)
    assert not nv_norms_rewriter.report()


def test_v1_graphs_are_left_alone(x: tf.Tensor) -> None:
    with tf.Graph().as_default() as graph:

        @tf.function(jit_compile=True, autograph=False)
        def norm(x: tf.Tensor) -> tf.Tensor:
            mean, variance = tf.nn.moments(x, [-1], keepdims=True)
            return (x - mean) * tf.math.rsqrt(variance + 1e-3)

        y = norm(tf.constant(x.numpy()))
        with tf.compat.v1.Session() as session:
            session.run(y)
    assert not ops_in(graph)


@pytest.mark.parametrize("where", ["rewrite", "garbage", "edit", "late"])
def test_no_trace_fails(
    layers: list[Layer],
    x: tf.Tensor,
    where: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(*arguments: Any, **keywords: Any) -> Any:
        raise RuntimeError("broken on purpose")

    monkeypatch.setitem(_process.state(), "notices", [])  # later reports would have what is said
    if where == "rewrite":
        monkeypatch.setattr(_library.Core, "rewrite", broken)
    elif where == "garbage":
        rewrite = _library.Core.rewrite

        def garbage(*arguments: Any, **keywords: Any) -> Any:
            graph, records = rewrite(*arguments, **keywords)
            after = tf.compat.v1.GraphDef.FromString(graph)
            for node in after.node:
                if node.op.startswith("Fused"):
                    node.op = "NoSuchOp"
            return after.SerializeToString(), records

        monkeypatch.setattr(_library.Core, "rewrite", garbage)
    elif where == "edit":
        monkeypatch.setattr(_trace_graph.Edit, "_create", broken)
    else:
        monkeypatch.setattr(_trace_graph.Edit, "_replace_outputs", broken)
    assert_same(step(layers)(x), stock(lambda: step(layers)(x)))
    assert found() == 0
    assert "stay as they are" in caplog.text
    if where == "rewrite":
        assert "stay as they are: RuntimeError: broken" in str(nv_norms_rewriter.report())
    else:
        assert {r.reason for r in nv_norms_rewriter.report()} == {"cannot_be_edited"}


def test_unused_graphs_cost_no_look(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any) -> Any:
        raise AssertionError("a graph without a root was given to the recognizer")

    monkeypatch.setattr(_library.Core, "rewrite", broken)
    monkeypatch.setattr(_process, "logger", None)  # what is caught is logged
    tf.function(lambda x: tf.tanh(x) @ x, jit_compile=True)(tf.ones((3, 3)))
