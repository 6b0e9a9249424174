"""Nets of one sample, as TensorFlow's layout pass leaves them.

Inference knows no axes that the pass has mapped. A size that it does not know may be anything, but
beside one that is known to be 1 it may be of something that is broadcast.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from layout_emulation import optimize, run, trace, training_step

CHANNELS, SIZE = 8, 7


class Net(tf.Module):
    """Convolution, norm, and what comes between; twice; a mean."""

    def __init__(self, rng: np.random.Generator, norm: Callable, between: Callable) -> None:
        def variable(*shape: int) -> tf.Variable:
            return tf.Variable(rng.normal(0.0, 0.3, shape).astype(np.float32))

        self.norm, self.between = norm, between
        behind = between(tf.zeros((1, SIZE, SIZE, CHANNELS))).shape[-1]
        self.kernels = [variable(3, 3, c, CHANNELS) for c in (CHANNELS, behind, behind)]
        self.gammas = [variable(CHANNELS) for _ in range(2)]
        self.betas = [variable(CHANNELS) for _ in range(2)]

    def __call__(self, x: tf.Tensor, training: bool) -> tf.Tensor:
        for kernel, gamma, beta in zip(self.kernels, self.gammas, self.betas, strict=False):
            x = self.between(self.norm(tf.nn.conv2d(x, kernel, 1, "SAME"), gamma, beta))
        return tf.reduce_mean(tf.nn.conv2d(x, self.kernels[-1], 1, "SAME"), [1, 2])


def _instance_norm(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tf.Tensor:
    mean, variance = tf.nn.moments(x, [1, 2], keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + 1e-3) * gamma + beta


def _one_product(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tf.Tensor:
    mean, variance = tf.nn.moments(x, [1, 2], keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, beta, gamma, 1e-3)


def _layer_norm(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tf.Tensor:
    mean, variance = tf.nn.moments(x, [1, 2, 3], keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + 1e-3) * gamma + beta


def _rms_norm(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tf.Tensor:
    return x * tf.math.rsqrt(tf.reduce_mean(x * x, -1, keepdims=True) + 1e-3) * gamma + beta


def _filter_response_norm(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tf.Tensor:
    return x * tf.math.rsqrt(tf.reduce_mean(x * x, [1, 2], keepdims=True) + 1e-3) * gamma + beta


def _filter_response_norm_of_two(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tf.Tensor:
    """The gradient of the mean is a term beside others."""
    return _filter_response_norm(x, gamma, beta) + tf.sin(x)


def _padded(x: tf.Tensor) -> tf.Tensor:
    return tf.pad(tf.tanh(x), [[0, 0], [1, 2], [0, 1], [0, 0]])


def _beside_another(x: tf.Tensor) -> tf.Tensor:
    return tf.concat([tf.nn.relu(x), x * tf.sigmoid(x)], -1)


def _gated(x: tf.Tensor) -> tf.Tensor:
    return x[..., :4] * tf.sigmoid(x[..., 4:])


def _gated_by_half(x: tf.Tensor) -> tf.Tensor:
    values, gate = tf.split(x, 2, -1)
    return values * tf.sigmoid(gate)


def _cropped(x: tf.Tensor) -> tf.Tensor:
    return tf.concat([x[:, 1:-1, 1:-1], tf.sin(x[:, 2:, 2:])], -1)


def _excited(x: tf.Tensor) -> tf.Tensor:
    """As in squeeze and excitation: by what channels are on average."""
    gate = tf.matmul(tf.reduce_mean(x, [1, 2]), tf.ones((CHANNELS, CHANNELS)) / 10.0)
    return x * tf.sigmoid(gate)[:, None, None, :]


def _depthwise(x: tf.Tensor) -> tf.Tensor:
    return tf.nn.depthwise_conv2d(x, tf.ones((3, 3, CHANNELS, 1)) / 10.0, [1] * 4, "SAME")


BETWEEN = {
    "clipped": lambda x: tf.clip_by_value(x, -1.0, 1.0),
    "cropped": _cropped,
    "depthwise": _depthwise,
    "excited": _excited,
    "gated": _gated,
    "gated by half": _gated_by_half,
    "mirrored": lambda x: x + tf.reverse(x, [2]),
    "nearest": lambda x: tf.image.resize(x, (2 * x.shape[1], 9), "nearest"),
    "reflected": lambda x: tf.pad(x, [[0, 0], [1, 1], [2, 1], [0, 0]], "REFLECT"),
    "rolled": lambda x: tf.roll(x, [1, 2], [1, 2]),
    "gelu": lambda x: tf.nn.gelu(x, approximate=True),
    "exact gelu": lambda x: tf.nn.gelu(x, approximate=False),
    "silu": tf.nn.silu,
    "leaky": tf.nn.leaky_relu,
    "padded": _padded,
    "beside": _beside_another,
    "average": lambda x: tf.nn.avg_pool2d(x, 2, 2, "SAME"),
    "largest": lambda x: tf.nn.max_pool2d(x, 2, 2, "SAME"),
}


NORMS = [
    _instance_norm,
    _one_product,
    _layer_norm,
    _rms_norm,
    _filter_response_norm,
    _filter_response_norm_of_two,
]


@pytest.mark.sampled(12)
@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize("norm", NORMS)
def test_each_norm_and_its_gradient_is_fused(rng, norm: Callable, between: str) -> None:
    _check_two_norms(Net(rng, norm, BETWEEN[between]))


class _JoinedNet(Net):
    """Convolutions side by side come before all norms."""

    def __init__(self, rng: np.random.Generator, norm: Callable) -> None:
        super().__init__(rng, norm, tf.tanh)
        sizes = [(3, 3, CHANNELS, CHANNELS // 2), (1, 1, CHANNELS, CHANNELS // 2)]
        self.first = [tf.Variable(rng.normal(0.0, 0.3, s).astype("f")) for s in sizes]

    def __call__(self, x: tf.Tensor, training: bool) -> tf.Tensor:
        parts = [tf.nn.conv2d(x, kernel, 1, "SAME") for kernel in self.first]
        return super().__call__(tf.concat(parts, -1), training)


@pytest.mark.parametrize("norm", NORMS)
def test_parts_joined_before_the_first_norm(rng, norm: Callable) -> None:
    _check_two_norms(_JoinedNet(rng, norm))


def _check_two_norms(net: Net) -> None:
    graph, fetches = trace(training_step(net), [(1, SIZE, SIZE, CHANNELS)])
    stock, fused, report = optimize(graph, fetches)
    directions = sorted(r.direction for r in report.fused if r.direction)
    assert directions == ["backward"] * 2 + ["forward"] * 2, report
    want, got = run(stock, fetches), run(fused, fetches)
    scale = max(np.abs(value).max() for value in want)
    for a, b in zip(want, got, strict=True):
        np.testing.assert_allclose(b / scale, a / scale, atol=3e-5, rtol=0)
