"""Norms that are scaled before they are norms: s * (x - mean) * rstd, as adaptive instance norms
are written. What their own output is differentiated by, dy * s, is no tensor of the graph. And
those that are shifted inside, for each sample."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf
from recognizer_graphs import stock_and_fused

import nv_norms_rewriter
import oracle

EPSILON = 1e-3
SHAPE, SCALE = (3, 5, 6, 8), (3, 1, 1, 8)


def _divided(x: tf.Tensor, scale: tf.Tensor, rms: bool, axes: list[int]) -> tf.Tensor:
    mean, variance = tf.nn.moments(x, axes, keepdims=True)
    if rms:
        return scale * x / tf.sqrt(tf.reduce_mean(x * x, axes, keepdims=True) + EPSILON)
    return scale * (x - mean) / tf.sqrt(variance + EPSILON)


def _multiplied(x: tf.Tensor, scale: tf.Tensor, rms: bool, axes: list[int]) -> tf.Tensor:
    mean, variance = tf.nn.moments(x, axes, keepdims=True)
    if rms:
        mean, variance = 0.0, tf.reduce_mean(x * x, axes, keepdims=True)
    return (x - mean) * scale * tf.math.rsqrt(variance + EPSILON)


def _over_scale(x: tf.Tensor, scale: tf.Tensor, rms: bool, axes: list[int]) -> tf.Tensor:
    mean, variance = tf.nn.moments(x, axes, keepdims=True)
    if rms:
        mean, variance = 0.0, tf.reduce_mean(x * x, axes, keepdims=True)
    return (x - mean) / (1.0 / scale) * tf.math.rsqrt(variance + EPSILON)


def _shifted(x: tf.Tensor, scale: tf.Tensor, rms: bool, axes: list[int]) -> tf.Tensor:
    """The scale is within both terms of the sum."""
    mean, variance = tf.nn.moments(x, axes, keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, None, scale, EPSILON)


def _step(norm: Callable, rms: bool, axes: list[int]) -> Callable:
    def step(x: tf.Tensor, scale: tf.Tensor, dy: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch([x, scale])
            y = norm(x, scale, rms, axes)
            loss = tf.reduce_sum(tf.square(y) * dy)
        return [y, *tape.gradient(loss, [x, scale])]

    return step


def _exact(values: list[np.ndarray], rms: bool, axes: list[int]) -> list[np.ndarray]:
    x, scale, dy = (value.astype(np.float64) for value in values)
    xhat = (oracle.rms_norm if rms else oracle.layer_norm)(x, axis=axes, epsilon=EPSILON).y
    dy = 2.0 * dy * xhat * scale
    dxhat = _summed_to(x.shape, dy * scale)
    dx = oracle.backward(dxhat, x, None, tuple(axes), (), EPSILON, subtract_mean=not rms).dx
    return [xhat * scale, dx, _summed_to(scale.shape, dy * xhat)]


def _summed_to(shape: tuple[int, ...], value: np.ndarray) -> np.ndarray:
    """Over the axes along which something of that shape was broadcast."""
    axes = tuple(i for i, size in enumerate(shape) if size == 1)
    return value.sum(axes, keepdims=True)


def _fused(direction: str) -> int:
    return sum(record.direction == direction for record in nv_norms_rewriter.report().fused)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("jit", [False, True], ids=["", "compiled"])
@pytest.mark.parametrize("axes", [[1, 2], [1, 2, 3]], ids=str)
@pytest.mark.parametrize("rms", [False, True], ids=["centred", "rms"])
@pytest.mark.parametrize(
    "norm", [_divided, _multiplied, _over_scale, _shifted], ids=lambda norm: norm.__name__
)
def test_scale_of_each_sample(rng, norm: Callable, rms: bool, axes: list[int], jit: bool) -> None:
    if rms and norm is _shifted:
        pytest.skip("no sum")
    if rms and axes == [1, 2]:
        axes = [3]
    values = [rng.normal(1.0, 2.0, shape).astype("f") for shape in (SHAPE, SCALE, SHAPE)]
    values[1] = rng.uniform(0.5, 2.0, SCALE).astype("f")
    signature = [tf.TensorSpec(value.shape) for value in values]
    stock, fused = stock_and_fused(_step(norm, rms, axes), signature, values, jit)
    assert _fused("backward") == 1 and not nv_norms_rewriter.report().refused
    for got, before, exact in zip(fused, stock, _exact(values, rms, axes), strict=True):
        size = np.abs(exact).max()
        np.testing.assert_allclose(before, exact, 1e-4, 1e-5 * size, err_msg="stock")
        np.testing.assert_allclose(got, exact, 1e-4, 1e-5 * size)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("jit", [False, True], ids=["", "compiled"])
@pytest.mark.parametrize("norm", [_divided, _multiplied, _shifted], ids=lambda norm: norm.__name__)
@pytest.mark.parametrize("batches", [(3, 3), (1, 3), (3, 1), (1, 1)], ids=str)
@pytest.mark.parametrize("sizes", [1, 3], ids=["batch", "image"])
def test_scale_that_may_be_of_another_batch(
    rng, batches: tuple[int, int], sizes: int, norm: Callable, jit: bool
) -> None:
    """One sample that is scaled in three ways has a gradient of three dy. `sizes` are unknown."""
    images, scales = batches
    values = [
        rng.normal(1.0, 2.0, (images, *SHAPE[1:])).astype("f"),
        rng.uniform(0.5, 2.0, (scales, *SCALE[1:])).astype("f"),
        rng.normal(1.0, 2.0, (max(batches), *SHAPE[1:])).astype("f"),
    ]
    signature = [tf.TensorSpec((*[None] * sizes, *v.shape[sizes:])) for v in values]
    signature[1] = tf.TensorSpec((None, *SCALE[1:]))
    stock, fused = stock_and_fused(_step(norm, False, [1, 2]), signature, values, jit)
    assert _fused("forward") == 1
    if sizes == 1:
        assert _fused("backward") == 1
    exact = _exact(values, False, [1, 2])
    for got, before, expected in zip(fused, stock, exact, strict=True):
        assert got.shape == before.shape == expected.shape
        np.testing.assert_allclose(got, expected, 1e-3, 1e-5 * np.abs(expected).max())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("jit", [False, True], ids=["", "compiled"])
@pytest.mark.parametrize("batch", [3, None], ids=["", "unknown"])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1, 1)], ids=str)
@pytest.mark.parametrize("norm", [_divided, _multiplied, _shifted], ids=lambda norm: norm.__name__)
def test_one_scale_for_all(rng, norm: Callable, shape, batch: int | None, jit: bool) -> None:
    """Which is no gamma, whose elements stand for channels."""
    values = [rng.normal(1.0, 2.0, size).astype("f") for size in (SHAPE, (1,) * 4, SHAPE)]
    exact = _exact(values, False, [1, 2])
    values[1] = values[1].reshape(shape)
    signature = [tf.TensorSpec((batch, *v.shape[1:]) if v.size > 1 else shape) for v in values]
    stock, fused = stock_and_fused(_step(norm, False, [1, 2]), signature, values, jit)
    assert _fused("forward") >= 1 and _fused("backward") == 1
    for got, before, expected in zip(fused, stock, exact, strict=True):
        assert got.shape == before.shape
        size = np.abs(expected).max()
        np.testing.assert_allclose(got, expected.reshape(got.shape), 1e-4, 1e-5 * size)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("jit", [False, True], ids=["", "compiled"])
@pytest.mark.parametrize("channels_first", [False, True])
@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("scale", [False, True])
def test_group_norm_of_one_channel(rng, scale, center, channels_first: bool, jit: bool) -> None:
    """A grey image, a mono spectrogram."""
    layer = keras.layers.GroupNormalization(
        1, 1 if channels_first else -1, EPSILON, center=center, scale=scale
    )
    image = (1, 5, 6) if channels_first else (5, 6, 1)
    layer.build((None, *image))
    values = [rng.normal(1.0, 2.0, (3, *image)).astype("f") for _ in range(2)]
    layer.set_weights([rng.uniform(0.5, 2.0, 1) for _ in layer.weights])

    def step(x: tf.Tensor, dy: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
            loss = tf.reduce_sum(tf.square(y) * dy)
        return [y, *tape.gradient(loss, [x, *layer.trainable_weights])]

    stock, fused = stock_and_fused(step, [tf.TensorSpec((None, *image))] * 2, values, jit)
    assert _fused("forward") == _fused("backward") == 1
    x, dy = (value.astype(np.float64) for value in values)
    weights = [float(weight[0]) for weight in layer.get_weights()]
    gamma = weights[0] if scale else 1.0
    xhat = oracle.layer_norm(x, axis=[1, 2, 3], epsilon=EPSILON).y
    y = xhat * gamma + (weights[-1] if center else 0.0)
    dy = 2.0 * dy * y
    exact = [y, oracle.backward(dy * gamma, x, None, (1, 2, 3), (), EPSILON).dx]
    exact += [(dy * xhat).sum(keepdims=True).reshape(1)] * scale
    exact += [dy.sum(keepdims=True).reshape(1)] * center
    for got, before, expected in zip(fused, stock, exact, strict=True):
        assert got.shape == before.shape == expected.shape
        np.testing.assert_allclose(got, expected, 1e-4, 1e-5 * np.abs(expected).max())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("jit", [False, True], ids=["", "compiled"])
@pytest.mark.parametrize("batch", [3, None], ids=["", "unknown"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_adaptive_instance_norm(rng, batch: int | None, dtype: str, jit: bool) -> None:
    """Scaled and shifted by the moments of another image, as tf.nn.batch_normalization has it."""

    def step(x: tf.Tensor, style: tf.Tensor, dy: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch([x, style])
            mean, variance = tf.nn.moments(x, [1, 2], keepdims=True)
            shift, square = tf.nn.moments(style, [1, 2], keepdims=True)
            scale = tf.sqrt(square + EPSILON)
            y = tf.nn.batch_normalization(x, mean, variance, shift, scale, EPSILON)
            loss = tf.reduce_sum(y * dy)
        return [y, *tape.gradient(loss, [x, style])]

    values = [rng.normal(1.0, 2.0, SHAPE).astype(dtype) for _ in range(3)]
    signature = [tf.TensorSpec((batch, *SHAPE[1:]), dtype)] * 3
    stock, fused = stock_and_fused(step, signature, values, jit)
    assert _fused("forward") == _fused("backward") == 1
    x, style, dy = (value.astype(np.float64) for value in values)
    xhat = oracle.layer_norm(x, axis=[1, 2], epsilon=EPSILON).y
    shift = style.mean((1, 2), keepdims=True)
    scale = np.sqrt(style.var((1, 2), keepdims=True) + EPSILON)
    dx = oracle.backward(dy * scale, x, None, (1, 2), (), EPSILON).dx
    dscale = (dy * xhat).sum((1, 2), keepdims=True)
    dshift = dy.sum((1, 2), keepdims=True)
    dstyle = (dshift + dscale * (style - shift) / scale) / (SHAPE[1] * SHAPE[2])
    tolerance = 1e-4 if dtype == "float32" else 2e-2
    for got, before, expected in zip(fused, stock, (xhat * scale + shift, dx, dstyle), strict=True):
        assert got.shape == before.shape
        size = np.abs(expected).max()
        np.testing.assert_allclose(got, expected, tolerance, tolerance * size)


def test_scale_that_comes_from_x(rng) -> None:
    """Its part of dx is beside the norm's."""

    def step(x: tf.Tensor, dy: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            scale = tf.sigmoid(tf.reduce_max(x, [1, 2], keepdims=True))
            loss = tf.reduce_sum(tf.square(_divided(x, scale, False, [1, 2])) * dy)
        return [loss, tape.gradient(loss, x)]

    values = [rng.normal(1.0, 2.0, SHAPE).astype("f") for _ in range(2)]
    signature = [tf.TensorSpec(SHAPE)] * 2
    for jit in (False, True):
        stock, fused = stock_and_fused(step, signature, values, jit)
        for got, before in zip(fused, stock, strict=True):
            np.testing.assert_allclose(got, before, 1e-4, 1e-5 * np.abs(before).max())


@pytest.mark.sampled(6)
@pytest.mark.parametrize("jit", [False, True], ids=["", "compiled"])
@pytest.mark.parametrize("batches", [(3, 3), (1, 3), (3, 1), (1, 1)], ids=str)
@pytest.mark.parametrize("scaled", [False, True], ids=["", "scaled"])
def test_offset_of_each_sample(rng, scaled: bool, batches: tuple[int, int], jit: bool) -> None:
    """tf.nn.batch_normalization puts it into the sum. One image may be shifted in three ways."""

    def step(x: tf.Tensor, offset: tf.Tensor, gain: tf.Tensor, dy: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch([x, offset, gain])
            mean, variance = tf.nn.moments(x, [1, 2], keepdims=True)
            y = tf.nn.batch_normalization(x, mean, variance, offset, None, EPSILON)
            loss = tf.reduce_sum(tf.square(y * gain if scaled else y) * dy)
        gradients = tape.gradient(loss, [x, offset, gain], unconnected_gradients="zero")
        return [y, *gradients]

    images, offsets = batches
    values = [
        rng.normal(1.0, 2.0, (images, *SHAPE[1:])).astype("f"),
        rng.normal(1.0, 2.0, (offsets, *SCALE[1:])).astype("f"),
        rng.uniform(0.5, 2.0, SHAPE[-1]).astype("f"),
        rng.normal(1.0, 2.0, (max(batches), *SHAPE[1:])).astype("f"),
    ]
    signature = [tf.TensorSpec((None, *v.shape[1:])) for v in values]
    signature[2] = tf.TensorSpec(SHAPE[-1:])
    stock, fused = stock_and_fused(step, signature, values, jit)
    assert _fused("forward") == _fused("backward") == 1
    assert not nv_norms_rewriter.report().refused
    x, offset, gain, dy = (value.astype(np.float64) for value in values)
    gain = gain if scaled else np.ones_like(gain)
    y = oracle.layer_norm(x, axis=[1, 2], epsilon=EPSILON).y + offset
    dz = 2.0 * dy * y * gain
    dx = oracle.backward(_summed_to(x.shape, dz * gain), x, None, (1, 2), (), EPSILON).dx
    dgain = (dz * y).sum((0, 1, 2)) if scaled else np.zeros_like(gain)
    exact = (y, dx, _summed_to(offset.shape, dz * gain), dgain)
    for got, before, expected in zip(fused, stock, exact, strict=True):
        assert got.shape == before.shape == expected.shape
        np.testing.assert_allclose(got, expected, 1e-3, 1e-5 * np.abs(expected).max())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("jit", [False, True], ids=["", "compiled"])
@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize("shifted", [False, True], ids=["scaled", "shifted"])
@pytest.mark.parametrize("outside", [False, True], ids=["", "outside"])
def test_gradient_by_hand_that_is_not_summed_must_not_fuse(
    rng, outside: bool, shifted: bool, images: int, jit: bool
) -> None:
    """Where x is one image for three scales, it is three gradients of x."""

    def step(x: tf.Tensor, other: tf.Tensor, weight: tf.Tensor) -> list[tf.Tensor]:
        mean, variance = tf.nn.moments(x, [1, 2], keepdims=True)
        root = tf.math.rsqrt(variance + EPSILON)
        centred = x - mean
        scale = tf.constant(1.0) if shifted else other
        y = x * root + (other - mean * root) if shifted else other * centred * root
        dy = tf.sin(y) * weight

        def moment(value: tf.Tensor) -> tf.Tensor:
            return tf.reduce_mean(value, [1, 2], keepdims=True)

        dx = root * scale * dy - root * moment(scale * dy)
        dx = dx - centred * root**3 * moment(dy * centred * scale)
        if outside:  # dy * scale is a tensor
            dx = root * (scale * dy - moment(scale * dy))
            dx = dx - centred * root**3 * moment(scale * dy * centred)
        return [y, dx]

    values = [
        rng.normal(1.0, 2.0, (images, *SHAPE[1:])).astype("f"),
        rng.uniform(0.5, 2.0, SCALE).astype("f"),
        rng.uniform(0.5, 2.0, SHAPE[-1]).astype("f"),
    ]
    signature = [tf.TensorSpec((None, *v.shape[1:])) for v in values[:2]]
    signature.append(tf.TensorSpec(SHAPE[-1:]))
    stock, fused = stock_and_fused(step, signature, values, jit)
    assert _fused("backward") == 0
    for got, before in zip(fused, stock, strict=True):
        assert got.shape == before.shape
        np.testing.assert_allclose(got, before, 1e-4, 1e-5 * np.abs(before).max())


@pytest.mark.parametrize("jit", [False, True], ids=["", "compiled"])
@pytest.mark.parametrize("rms", [False, True], ids=["centred", "rms"])
def test_gain_of_zeros_has_no_gradient_to_find(rng, rms: bool, jit: bool) -> None:
    """What is multiplied with y then was taken for dy, and the product, which is 0, for dx."""
    gain = tf.zeros(SHAPE[-1:])

    def step(x: tf.Tensor, gate: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch([x, gate])
            y = _multiplied(x, gain, rms, [-1]) * gate
            loss = tf.reduce_sum(tf.sin(y))
        return [y, *tape.gradient(loss, [x, gate])]

    shapes = [SHAPE, (SHAPE[0], 1, *SHAPE[2:])]
    values = [rng.normal(1.0, 2.0, shape).astype("f") for shape in shapes]
    signature = [tf.TensorSpec((None, None, *SHAPE[2:]))] * 2
    stock, fused = stock_and_fused(step, signature, values, jit)
    for got, before, shape in zip(fused, stock, [SHAPE, *shapes], strict=True):
        np.testing.assert_array_equal(got, np.zeros(shape))
        np.testing.assert_array_equal(before, np.zeros(shape))
