"""Whole steps: accumulation, clipping, loss scaling, fit."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from training_norms import (
    FOUR,
    TF_KERAS_GROUP,
    TF_KERAS_LAYER,
    TF_KERAS_MIDDLE,
    Norm,
    fit,
    fit_in_float64,
)
from training_steps import assert_as_close_as_stock, assert_counts, check, normal, spec

import nv_norms_rewriter

NORMS = pytest.mark.parametrize("norm", FOUR, ids=lambda norm: norm.name)


@NORMS
def test_accumulation_over_micro_batches_in_one_graph(rng, norm: Norm) -> None:
    x, dy, values, layer, variables = norm.draw(rng)
    other, dother = normal(rng, *norm.shape), normal(rng, *norm.shape)

    def make():
        @tf.function(input_signature=[spec(a) for a in (x, dy, other, dother)])
        def step(*arrays):
            total, dxs = [0.0] * len(variables), []
            for part, dpart in (arrays[:2], arrays[2:]):
                with tf.GradientTape() as tape:
                    tape.watch(part)
                    loss = tf.reduce_sum(tf.tanh(layer(part)) * dpart)
                dx, *gradients = tape.gradient(loss, [part, *variables])
                total = [t + g for t, g in zip(total, gradients, strict=True)]
                dxs.append(dx)
            return dxs, total

        return step

    one = norm.backward(dy * (1 - np.tanh(norm.forward(x, values)) ** 2), x, values)
    two = norm.backward(dother * (1 - np.tanh(norm.forward(other, values)) ** 2), other, values)
    exact = [one[0], two[0], *(a + b for a, b in zip(one[1:], two[1:], strict=True))]
    check(make, [x, dy, other, dother], exact, {norm.kind: 2}, {norm.kind: 2})


@NORMS
def test_accumulation_in_variables_over_calls(rng, norm: Norm) -> None:
    x, dy, values, layer, variables = norm.draw(rng)
    sums = [tf.Variable(tf.zeros_like(v)) for v in variables]

    def make():
        for total in sums:
            total.assign(tf.zeros_like(total))

        @tf.function(input_signature=[spec(x), spec(dy)])
        def accumulate(x, dy):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.tanh(layer(x)) * dy)
            for total, gradient in zip(sums, tape.gradient(loss, variables), strict=True):
                total.assign_add(gradient)

        def step(x, dy):
            accumulate(x, dy)
            accumulate(2.0 * x, dy)
            return [tf.identity(total) for total in sums]

        return step

    exact = [0.0] * len(variables)
    for part in (x, np.float32(2) * x):
        dy_part = dy * (1 - np.tanh(norm.forward(part, values)) ** 2)
        parts = norm.backward(dy_part, part, values)[1:]
        exact = [a + b for a, b in zip(exact, parts, strict=True)]
    check(make, [x, dy], exact, {norm.kind: 1}, {norm.kind: 1})


@NORMS
def test_clipping_by_global_norm(rng, norm: Norm) -> None:
    x, dy, values, layer, variables = norm.draw(rng)

    def make():
        @tf.function(input_signature=[spec(x), spec(dy)])
        def step(x, dy):
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_sum(tf.tanh(layer(x)) * dy)
            return tf.clip_by_global_norm(tape.gradient(loss, [x, *variables]), 0.5)

        return step

    gradients = norm.backward(dy * (1 - np.tanh(norm.forward(x, values)) ** 2), x, values)
    size = np.sqrt(sum((g**2).sum() for g in gradients))
    exact = [*(g * min(1.0, 0.5 / size) for g in gradients), size]
    check(make, [x, dy], exact, {norm.kind: 1}, {norm.kind: 1})


@pytest.mark.parametrize("norm", [*FOUR, TF_KERAS_LAYER], ids=lambda norm: norm.name)
def test_loss_scaling_in_mixed_precision(rng, norm: Norm) -> None:
    """The scaler reads each gradient for infinities before anybody applies it."""
    import keras

    x, dy = (normal(rng, *norm.shape).astype(np.float16) for _ in range(2))
    values = [np.float32(value.astype(np.float16)) for value in norm.parameters(rng)]

    def make():
        layer, variables = norm.build(values, "mixed_float16")
        weights = [keras.Variable(variable) for variable in variables]
        optimizer = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(1.0), initial_scale=256.0
        )
        optimizer.build(weights)

        @tf.function(input_signature=[spec(x), spec(dy)])
        def step(x, dy):
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_sum(
                    tf.cast(tf.tanh(layer(x)), tf.float32) * tf.cast(dy, "float32")
                )
                scaled = optimizer.scale_loss(loss)
            dx, *gradients = tape.gradient(scaled, [x, *variables])
            optimizer.apply(gradients, weights)
            return dx, [weight.value for weight in weights]

        return step

    y = norm.forward(x, values).astype(np.float16)
    tanh = np.tanh(np.float64(y))
    dx, *gradients = norm.backward(np.float64(dy) * (1 - tanh**2), x, values)
    exact = [256 * dx, *(np.float64(v) - g for v, g in zip(values, gradients, strict=True))]
    options = {"units": 2.0, "dtype": np.float16}
    check(make, [x, dy], exact, {norm.kind: 1}, {norm.kind: 1}, **options)


def _check_fit(rng, norm: Norm, samples: int, library: str) -> None:
    """Two batches by a model of one norm, in `keras` or `tf_keras`."""
    x, target = (normal(rng, samples, *norm.shape[1:]) for _ in range(2))
    values = norm.parameters(rng)
    options = {"batch_size": 4, "library": library}
    with nv_norms_rewriter.disabled():
        stock = fit(norm, values, x, target, **options)
    nv_norms_rewriter.clear_report()
    fused = fit(norm, values, x, target, **options)
    assert_as_close_as_stock(stock, fused, fit_in_float64(norm, values, x, target, 4))
    assert_counts(nv_norms_rewriter.report(), {norm.kind: 1}, {norm.kind: 1})


SAMPLES = pytest.mark.parametrize("samples", [8, 6], ids=["whole batches", "ragged"])


@pytest.mark.sampled(2)
@NORMS
@SAMPLES
def test_fit(rng, norm: Norm, samples: int) -> None:
    """Keras 3, without XLA; the batch's size is known if it divides the number of samples."""
    _check_fit(rng, norm, samples, "keras")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "norm", [TF_KERAS_LAYER, TF_KERAS_MIDDLE, TF_KERAS_GROUP], ids=lambda norm: norm.name
)
@SAMPLES
def test_fit_of_tf_keras(rng, norm: Norm, samples: int) -> None:
    _check_fit(rng, norm, samples, "tf_keras")
