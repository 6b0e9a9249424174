"""Norms with a gamma and a beta, scaled and shifted for each sample behind that, in functions that
are traced for XLA: one op each, its gradients included."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from traced import found, ops_in, running

import nv_norms_rewriter

pytestmark = pytest.mark.usefixtures("every_norm", "enabled")

N, SPACE, CHANNELS, GROUPS = 3, (5, 4), 8, 2
SHAPE = (N, *SPACE, CHANNELS)
EPSILON = 1e-3


def _layer(kind: str, rng: np.random.Generator) -> Any:
    layers = keras.layers
    layer = {
        "layer": lambda: layers.LayerNormalization(epsilon=EPSILON),
        "group": lambda: layers.GroupNormalization(GROUPS, epsilon=EPSILON),
        "rms": lambda: layers.RMSNormalization(epsilon=EPSILON),
    }[kind]()
    layer.build(SHAPE)
    for variable in layer.trainable_variables:
        variable.assign(rng.normal(0.5, 1.0, variable.shape))
    return layer


def _step(layer: Any) -> Any:
    variables = [v.value for v in layer.trainable_variables]

    def step(x: Any, scale: Any, offset: Any, dy: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([x, scale, offset])
            y = layer(x) * (1.0 + scale[:, None, None]) + offset[:, None, None]
        return [y, *tape.gradient(y, [x, scale, offset, *variables], output_gradients=dy)]

    return step


def _exact(kind: str, layer: Any, x: Any, scale: Any, offset: Any, dy: Any) -> list[np.ndarray]:
    x, dy = (np.asarray(v, np.float64) for v in (x, dy))
    s = 1 + np.asarray(scale, np.float64)[:, None, None]
    t = np.asarray(offset, np.float64)[:, None, None]
    gamma, *beta = (np.asarray(v, np.float64) for v in layer.trainable_variables)

    def mean(value: np.ndarray) -> np.ndarray:
        if kind != "group":
            return value.mean(-1, keepdims=True)
        grouped = value.reshape(N, -1, GROUPS, CHANNELS // GROUPS).mean((1, 3))
        return np.repeat(grouped, CHANNELS // GROUPS, -1)[:, None, None]

    e = x if kind == "rms" else x - mean(x)
    rstd = 1 / np.sqrt(mean(e * e) + EPSILON)
    xhat = e * rstd
    affine = xhat * gamma + (beta[0] if beta else 0)
    w = dy * s * gamma
    dx = rstd * (w - xhat * mean(w * xhat) - (0 if kind == "rms" else mean(w)))
    positions = (1, 2)
    gradients = [
        dx,
        (dy * affine).sum(positions),
        dy.sum(positions),
        (dy * s * xhat).sum((0, 1, 2)),
    ]
    return [affine * s + t, *gradients, *[(dy * s).sum((0, 1, 2))] * len(beta)]


@pytest.mark.parametrize("batch", [N, None])
@pytest.mark.parametrize("kind", ["layer", "group", "rms"])
def test_norm_and_its_gradient_are_one_op_each(rng, kind: str, batch: int | None) -> None:
    layer = _layer(kind, rng)
    shapes = [SHAPE, (N, CHANNELS), (N, CHANNELS), SHAPE]
    signature = [tf.TensorSpec((batch, *shape[1:])) for shape in shapes]
    step = tf.function(_step(layer), signature, jit_compile=True)
    graph = step.get_concrete_function().graph
    assert found("forward") == found("backward") == 1
    assert len(ops_in(graph)) == 2
    fused = [op for op in running(graph) if op.type in ops_in(graph)]
    assert all(op.get_attr("per_sample") for op in fused)
    # Nothing else computes with as many numbers as x has.
    others = {op.type for op in running(graph) if op.outputs and op.outputs[0].shape.rank == 4}
    assert not others & {"Rsqrt", "SquaredDifference", "Sum", "AddN"}
    inputs = [tf.constant(rng.normal(0.5, 2.0, shape), tf.float32) for shape in shapes]
    for got, exact in zip(step(*inputs), _exact(kind, layer, *inputs), strict=True):
        assert got.shape == exact.shape
        np.testing.assert_allclose(got, exact, 1e-4, 2e-5 * np.abs(exact).max())


@pytest.mark.parametrize("kind", ["layer", "group", "rms"])
def test_tape_outside_of_the_function(rng, kind: str) -> None:
    layer = _layer(kind, rng)

    @tf.function(jit_compile=True)
    def forward(x: Any, scale: Any, offset: Any) -> Any:
        return layer(x) * (1.0 + scale[:, None, None]) + offset[:, None, None]

    shapes = [SHAPE, (N, CHANNELS), (N, CHANNELS), SHAPE]
    *inputs, dy = [tf.constant(rng.normal(0.5, 2.0, shape), tf.float32) for shape in shapes]
    variables = [v.value for v in layer.trainable_variables]
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        y = forward(*inputs)
    results = [y, *tape.gradient(y, [*inputs, *variables], output_gradients=dy)]
    assert found("forward") == 1
    for got, exact in zip(results, _exact(kind, layer, *inputs, dy), strict=True):
        np.testing.assert_allclose(got, exact, 1e-4, 2e-5 * np.abs(exact).max())


@pytest.mark.parametrize("batch", [N, None])
def test_what_is_saved_holds_ops_of_tensorflow_alone(rng, batch: int | None, tmp_path) -> None:
    layer = _layer("group", rng)
    shapes = [SHAPE, (N, CHANNELS), (N, CHANNELS), SHAPE]
    signature = [tf.TensorSpec((batch, *shape[1:])) for shape in shapes]
    module = tf.Module()
    module.variables_ = [v.value for v in layer.trainable_variables]
    module.step = tf.function(_step(layer), signature, jit_compile=True)
    inputs = [tf.constant(rng.normal(0.5, 2.0, shape), tf.float32) for shape in shapes]
    module.step(*inputs)
    assert found("forward") == found("backward") == 1
    tf.saved_model.save(module, str(tmp_path))
    saved = saved_model_pb2.SavedModel.FromString((tmp_path / "saved_model.pb").read_bytes())
    functions = saved.meta_graphs[0].graph_def.library.function
    ops = {node.op for function in functions for node in function.node_def}
    assert not {op for op in ops if op.startswith("Fused")} and "Rsqrt" in ops
    with nv_norms_rewriter.disabled():
        loaded = tf.saved_model.load(str(tmp_path))
        results = loaded.step(*inputs)
    for got, exact in zip(results, _exact("group", layer, *inputs), strict=True):
        np.testing.assert_allclose(got, exact, 1e-4, 2e-5 * np.abs(exact).max())
