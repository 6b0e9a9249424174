"""Casts beside fused ops are taken in when a function is traced, if the tensor is stored anyway."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from traced import EPSILON, SHAPE, Layer, found, ops_in, running

import nv_norms
import nv_norms_rewriter

HALF = tf.float16

pytestmark = pytest.mark.usefixtures("every_norm", "enabled")


def by_name(layer: Layer, x: tf.Tensor) -> tf.Tensor:
    return nv_norms.fused_layer_norm(x, layer.gamma, layer.beta, epsilon=EPSILON).y


def in_float32(layer: Layer, x: tf.Tensor) -> tf.Tensor:
    """Found by the recognizer."""
    return tf.cast(layer(tf.cast(x, tf.float32)), x.dtype)


WAYS = [by_name, in_float32]


def _between_casts(way: Callable[..., tf.Tensor], layer: Layer, x: tf.Tensor) -> tf.Tensor:
    return tf.cast(way(layer, tf.cast(x, HALF)), tf.float32)


def _casts(graph: Any) -> int:
    return sum(op.type == "Cast" for op in running(graph))


def _types(graph: Any) -> set[tf.DType]:
    fused = [op for op in running(graph) if "Norm" in op.type and op.type.startswith("Fused")]
    assert fused
    names = ("T", "Y", "out_type", "dx_type")
    return {op.get_attr(n) for op in fused for n in names if n in op.node_def.attr}


def _errors(actual: Any, exact: Any) -> list[float]:
    pairs = zip(tf.nest.flatten(actual), exact, strict=True)
    return [float(np.abs(a.numpy().astype(np.float64) - e).max()) for a, e in pairs]


def _step(
    layer: Layer, dy: tf.Tensor, way: Callable[..., tf.Tensor], **options: Any
) -> tf.types.experimental.PolymorphicFunction:
    @tf.function(autograph=False, **options)
    def step(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = _between_casts(way, layer, x)
        return [y, *tape.gradient(y, [x, layer.gamma, layer.beta], output_gradients=dy)]

    return step


@pytest.mark.parametrize("way", WAYS)
def test_step_that_xla_compiles(way: Any, layer: Layer, x: tf.Tensor, dy: tf.Tensor) -> None:
    with nv_norms_rewriter.disabled():
        stock = _step(layer, dy, way, jit_compile=True)(x)
    step = _step(layer, dy, way, jit_compile=True)
    graph = step.get_concrete_function(x).graph
    assert _casts(graph) == 0
    assert _types(graph) == {tf.float32}
    exact = [layer.exact(x), *layer.exact_gradients(x, dy)]
    got = step(x)
    assert [t.dtype for t in got] == [t.dtype for t in stock]
    errors = _errors(got, exact)
    assert max(errors) < 2e-5
    for now, before in zip(errors, _errors(stock, exact), strict=True):
        assert now <= before + 1e-6
    assert found() == found("backward") == (way is in_float32)


@pytest.mark.parametrize("compiled", [True, False], ids=["xla", "function"])
@pytest.mark.parametrize("way", WAYS)
def test_tape_outside(way: Any, compiled: bool, layer: Layer, x: tf.Tensor, dy: tf.Tensor) -> None:
    function = tf.function(
        lambda x: _between_casts(way, layer, x), jit_compile=compiled, autograph=False
    )
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    got = [y, *tape.gradient(y, [x, layer.gamma, layer.beta], output_gradients=dy)]
    errors = _errors(got, [layer.exact(x), *layer.exact_gradients(x, dy)])
    assert max(errors) < 2e-5  # in half it would be 2e-3


@pytest.mark.parametrize("way", WAYS)
def test_casts_that_xla_computes_with_their_neighbours_stay(
    way: Any, layer: Layer, x: tf.Tensor
) -> None:
    """Nobody needs x + 1 or y in float32 in memory: it would be twice as much."""

    def between(x: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(_between_casts(way, layer, x + 1.0))

    graph = tf.function(between, jit_compile=True, autograph=False).get_concrete_function(x).graph
    assert _types(graph) == {HALF}
    assert _casts(graph) == 2
    function = tf.function(between, autograph=False)
    exact = np.maximum(layer.exact(x.numpy().astype(np.float64) + 1.0), 0.0)
    assert max(_errors(function(x), [exact])) < 2e-5  # left to Grappler, which takes them in


def test_norm_left_to_xla_keeps_its_casts(layer: Layer, x: tf.Tensor, dy: tf.Tensor) -> None:
    nv_norms_rewriter.configure(xla="none")
    with nv_norms_rewriter.disabled():
        stock = _step(layer, dy, in_float32, jit_compile=True).get_concrete_function(x).graph
    graph = _step(layer, dy, in_float32, jit_compile=True).get_concrete_function(x).graph
    assert [op.type for op in graph.get_operations()] == [op.type for op in stock.get_operations()]
    assert found() == 0


def test_norm_by_name_beside_one_left_to_xla(layer: Layer, x: tf.Tensor) -> None:
    nv_norms_rewriter.configure(xla="none")

    def both(x: tf.Tensor) -> list[tf.Tensor]:
        return [_between_casts(way, layer, x) for way in WAYS]

    function = tf.function(both, jit_compile=True, autograph=False)
    graph = function.get_concrete_function(x).graph
    assert ops_in(graph) == {"FusedLayerNorm"}
    assert _types(graph) == {tf.float32}
    named, left = _errors(function(x), [layer.exact(x)] * 2)
    assert named < 2e-5
    assert left < 2e-2


def test_gradient_of_its_own_on_the_way_stays(layer: Layer, x: tf.Tensor) -> None:
    @tf.RegisterGradient("TestTraceCastsTwice")
    def _twice(op: Any, dy: tf.Tensor) -> tf.Tensor:
        return 2.0 * tf.cast(dy, tf.float32)

    @tf.function(jit_compile=True, autograph=False)
    def function(x: tf.Tensor) -> tf.Tensor:
        with tf.compat.v1.get_default_graph().gradient_override_map(
            {"Cast": "TestTraceCastsTwice"}
        ):
            half = tf.cast(x, HALF)
        return by_name(layer, half)

    graph = function.get_concrete_function(x).graph
    assert _casts(graph) == 1 and _types(graph) == {HALF}


@pytest.mark.parametrize("way", WAYS)
def test_saved_model(way: Any, layer: Layer, x: tf.Tensor, tmp_path: Any) -> None:
    """Of ops that a trace put there none is saved; those that a program calls are saved as such."""
    module = tf.Module()
    module.layer = layer
    module.call = tf.function(
        lambda x: _between_casts(way, layer, x),
        [tf.TensorSpec(SHAPE)],
        jit_compile=True,
        autograph=False,
    )
    exact = [layer.exact(x)]
    assert max(_errors(module.call(x), exact)) < 2e-5
    concrete = module.call.get_concrete_function()
    graph_def = concrete.graph.as_graph_def()
    ops = {n.op for n in graph_def.node} | {
        n.op for f in graph_def.library.function for n in f.node_def
    }
    assert ("FusedLayerNorm" in ops) == (way is by_name)
    with nv_norms_rewriter.disabled():
        imported = tf.compat.v1.wrap_function(
            lambda *inputs: tf.import_graph_def(
                graph_def,
                dict(zip([t.name for t in concrete.inputs], inputs, strict=True)),
                [t.name for t in concrete.outputs],
            ),
            [tf.TensorSpec(t.shape, t.dtype) for t in concrete.inputs],
        )
        captured = [t for t, _ in concrete.graph.captures]
        assert max(_errors(imported(x, *captured), exact)) < 2e-2  # with its Casts, as written
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    assert max(_errors(loaded.call(x), exact)) < 2e-2


def test_stock_functions_of_every_type(rng: np.random.Generator) -> None:
    """What is saved in the place of ops that read and write several types."""
    from nv_norms_rewriter import _saving

    dims = (4, 16)
    feeds = {
        "x": rng.normal(5.0, 1.0, dims), "dy": rng.normal(size=dims),
        "gamma": rng.uniform(0.5, 2.0, 16), "beta": rng.normal(size=16),
    }  # fmt: skip

    def step(x: tf.Tensor, dy: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch([x, gamma, beta])
            half = tf.cast(x, HALF)
            y = nv_norms.fused_layer_norm(half, gamma, beta, epsilon=EPSILON).y
        return [y, *tape.gradient(y, [x, gamma, beta], output_gradients=dy)]

    arguments = [tf.constant(feeds[k], HALF if k == "dy" else tf.float32) for k in feeds]
    concrete = tf.function(step, jit_compile=True, autograph=False).get_concrete_function(
        *arguments
    )
    assert _types(concrete.graph) == {tf.float32, HALF}
    assert _casts(concrete.graph) == 0
    with _saving.raw():
        graph_def = concrete.graph.as_graph_def()
    for node in graph_def.node:
        node.attr.pop(_saving.REPLACED, None)  # else what was there is handed on, not computed
        if node.op.startswith("Fused"):
            node.attr[_saving.MARK].b = True
    assert _saving.lower(graph_def) == 4  # those that read what was cast are there, too, unread
    lowered = tf.compat.v1.wrap_function(
        lambda *inputs: tf.import_graph_def(
            graph_def,
            dict(zip([t.name for t in concrete.inputs], inputs, strict=True)),
            [t.name for t in concrete.outputs],
        ),
        [tf.TensorSpec(t.shape, t.dtype) for t in concrete.inputs],
    )
    for actual, fused in zip(lowered(*arguments), concrete(*arguments), strict=True):
        assert actual.dtype == fused.dtype
        tolerance = 2e-3 if actual.dtype == HALF else 2e-5
        np.testing.assert_allclose(
            tf.cast(actual, tf.float64), tf.cast(fused, tf.float64), tolerance, tolerance
        )


def _same(x: Any) -> tf.Tensor:
    """A Cast to the type that x has: tensors with NumPy's behaviour get one at each operator."""
    return tf.raw_ops.Cast(x=x, DstT=x.dtype)


def _cast_at_each_operator(layer: Layer, x: tf.Tensor) -> tf.Tensor:
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    scale = _same(tf.math.rsqrt(_same(variance) + EPSILON)) * _same(layer.gamma)
    offset = _same(layer.beta) - _same(_same(mean) * _same(scale))
    return _same(_same(x) * _same(scale)) + _same(_same(offset))


@pytest.mark.parametrize("last", [_same, tf.math.negative], ids=["fetched", "read"])
@pytest.mark.parametrize("where", ["xla", "tape"])
def test_casts_that_change_no_type(
    where: str, last: Any, layer: Layer, x: tf.Tensor, dy: tf.Tensor
) -> None:
    function = tf.function(
        lambda x: last(_same(_cast_at_each_operator(layer, x))),
        jit_compile=where == "xla",
        autograph=False,
    )
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    got = [y, *tape.gradient(y, [x, layer.gamma, layer.beta], output_gradients=dy)]
    assert found(where=where) == found("backward", where) == 1
    sign = 1.0 if last is _same else -1.0
    exact = [layer.exact(x), *layer.exact_gradients(x, dy)]
    assert max(_errors(got, [sign * each for each in exact])) < 2e-5
