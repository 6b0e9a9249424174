"""GraphDefs that are taken out of functions with fused ops hold TensorFlow's own, which compute the
same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from saved import SIZE, Module, all_ops, batch
from traced import close, ops_in

import nv_norms_rewriter
import oracle
from nv_norms_rewriter import _process, _saving

pytestmark = pytest.mark.usefixtures("every_norm")

KINDS = [
    ("layer", {"axis": [-1]}),
    ("layer", {"axis": [2, 1]}),
    ("layer", {"axis": [-1], "subtract_mean": False}),
    ("rms", {"axis": [1, -1]}),
    ("instance", {"data_format": "N...C"}),
    ("instance", {"data_format": "NC..."}),
    ("group", {"data_format": "N...C", "groups": 2}),
    ("group", {"data_format": "NC...", "groups": 3}),
    ("instance", {"data_format": "NC...", "negative_slope": -0.5}),
    ("group", {"data_format": "N...C", "groups": 2, "negative_slope": 0.0}),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("kind,attributes", KINDS)
def test_stock_functions_compute_what_the_ops_do(
    rng: np.random.Generator, ops: Any, kind: str, attributes: dict[str, Any], dtype: str
) -> None:
    """The stock functions stand for ops that other tests compare with the formula in float64."""
    shape = (2, 6, 5, 4)
    stat = tf.float64 if dtype == "float64" else tf.float32
    x, dy = (tf.constant(rng.normal(size=shape), dtype) for _ in range(2))
    axes = attributes.get("axis")
    count = (
        np.prod([shape[a] for a in axes])
        if axes
        else shape[-1 if attributes["data_format"] == "N...C" else 1]
    )
    gamma, beta = (tf.constant(rng.normal(size=count), dtype) for _ in range(2))

    def run(x: tf.Tensor, dy: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> list[tf.Tensor]:
        forward = getattr(ops, f"fused_{kind}_norm")
        outputs = forward(
            x=x, scale=[gamma], offset=[beta], out_type=tf.float32, U=stat, **attributes
        )
        rest = {} if kind == "rms" else {"mean": outputs[1]}
        if kind in ("instance", "group"):
            rest["offset"] = [beta] if "negative_slope" in attributes else []
        dx, (dgamma,), (dbeta,) = getattr(ops, f"fused_{kind}_norm_grad")(
            dy=dy,
            x=x,
            scale=[gamma],
            rstd=outputs[-1],
            dx_type=dtype,
            param_type=tf.float32,
            num_dx=1,
            num_dscale=1,
            num_doffset=1,
            **rest,
            **attributes,
        )
        return [*outputs, *dx, dgamma, dbeta]

    concrete = tf.function(run, autograph=False).get_concrete_function(x, dy, gamma, beta)
    for op in concrete.graph.get_operations():
        if op.type.startswith("Fused"):
            op._set_attr(_saving.MARK, tf.compat.v1.AttrValue(b=True))
    graph_def = concrete.graph.as_graph_def()
    assert not any(op.startswith("Fused") for op in all_ops(graph_def))
    names = [tensor.name for tensor in (*concrete.inputs, *concrete.outputs)]
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
        with tf.compat.v1.Session(graph=graph) as session:
            arrays = (x.numpy(), dy.numpy(), gamma.numpy(), beta.numpy())
            stock = session.run(names[4:], dict(zip(names[:4], arrays, strict=True)))
    tolerance = 2e-3 if dtype == "float16" else 1e-5
    for name, actual, expected in zip(names[4:], stock, run(x, dy, gamma, beta), strict=True):
        assert actual.shape == expected.shape and actual.dtype == expected.dtype.as_numpy_dtype
        np.testing.assert_allclose(
            actual, expected, tolerance, tolerance * np.abs(expected).max(), err_msg=name
        )


def test_failure_to_lower_is_said(
    rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    module = Module(rng)

    def broken(*arguments: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(_saving, "lower", broken)
    tf.saved_model.save(module, str(tmp_path), module.compiled.get_concrete_function())
    assert "holds fused normalizations" in caplog.text and "broken" in caplog.text


def test_frozen_graphs_hold_stock_ops(rng: np.random.Generator) -> None:
    from tensorflow.python.framework import convert_to_constants

    module, x = Module(rng), batch(rng)
    concrete = module.compiled.get_concrete_function()
    frozen = convert_to_constants.convert_variables_to_constants_v2(concrete)
    assert ops_in(concrete.graph) == {"FusedLayerNorm"} and not ops_in(frozen.graph)
    close(frozen(tf.constant(x))[0], module.layer.exact(x))


@pytest.mark.parametrize("saved", ["stock", "fused"])
def test_frozen_graphs_that_name_a_device(rng: np.random.Generator, saved: str) -> None:
    """Then Grappler, which the converter asks, runs the plugin on all of the graph."""
    from tensorflow.python.framework import convert_to_constants

    layer = keras.layers.LayerNormalization()
    layer.build((None, SIZE))

    @tf.function(input_signature=[tf.TensorSpec((None, SIZE))])
    def on_the_cpu(x: tf.Tensor) -> tf.Tensor:
        with tf.device("/CPU:0"):
            return 2.0 * layer(x)

    nv_norms_rewriter.configure(saved_models=saved)
    try:
        frozen = convert_to_constants.convert_variables_to_constants_v2(
            on_the_cpu.get_concrete_function()
        )
        ops = {node.op for node in frozen.graph.as_graph_def().node}
    finally:
        nv_norms_rewriter.configure(saved_models="stock")
    assert ("FusedLayerNorm" in ops) == (saved == "fused"), ops
    nv_norms_rewriter.clear_report()
    on_the_cpu(tf.constant(rng.normal(size=(3, SIZE)).astype(np.float32)))
    assert len(nv_norms_rewriter.report().fused) == 1  # what runs here is fused all the same


def test_graphs_hold_stock_ops_where_another_plugin_holds_the_cpu(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There every function is rewritten when it is traced; not those that stand for our ops."""
    module = Module(rng)
    monkeypatch.setitem(_process.state(), "held", {"CPU"})
    concrete = module.gradients.get_concrete_function()
    assert ops_in(concrete.graph) == {"FusedLayerNorm", "FusedLayerNormGrad"}
    assert not any(op.startswith("Fused") for op in all_ops(concrete.graph.as_graph_def()))


def test_converters_find_stock_ops(rng: np.random.Generator) -> None:
    module, x = Module(rng), batch(rng)
    concrete = module.compiled.get_concrete_function()
    assert ops_in(concrete.graph) == {"FusedLayerNorm"}
    assert not any(op.startswith("Fused") for op in all_ops(concrete.graph.as_graph_def()))
    converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete], module)
    interpreter = tf.lite.Interpreter(model_content=converter.convert())
    interpreter.resize_tensor_input(0, x.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    y = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    close(y, module.layer.exact(x))


@pytest.mark.parametrize("compiled", [True, False], ids=["xla", "tape"])
@pytest.mark.parametrize("v1", [True, False], ids=["v1", "function"])
def test_graph_def_imported_and_differentiated(compiled: bool, v1: bool, rng) -> None:
    """TensorFlow cannot take the gradient of each call in a graph that is imported."""
    x = tf.constant(rng.normal(1.0, 2.0, (4, 32)), tf.float32)

    def layer_norm(x):
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        return (x - mean) * tf.math.rsqrt(variance + 1e-3)

    norm = tf.function(layer_norm, jit_compile=compiled)
    concrete = norm.get_concrete_function(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(concrete(x) ** 3)
    tape.gradient(loss, x)
    assert "FusedLayerNorm" in ops_in(concrete.graph)
    graph_def = concrete.graph.as_graph_def()
    assert not any("Fused" in op for op in all_ops(graph_def))

    def gradient(x):
        names = {concrete.inputs[0].op.name: x}
        (y,) = tf.graph_util.import_graph_def(graph_def, names, [concrete.outputs[0].name])
        return tf.gradients(tf.reduce_sum(y**3), x)[0]

    if v1:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            fed = tf.compat.v1.placeholder(tf.float32, x.shape)
            got = session.run(gradient(fed), {fed: x.numpy()})
    else:
        got = tf.function(gradient)(x)
    y = oracle.layer_norm(x, None, None, -1, 1e-3).y
    close(got, oracle.backward(3 * y**2, x, None, (1,), (1,), 1e-3).dx)
