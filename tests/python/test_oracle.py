"""The oracle against Keras in float64, and its gradients against finite differences."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import oracle


def _keras(layer: keras.layers.Layer, x: np.ndarray, gamma=None, beta=None) -> np.ndarray:
    layer.build(x.shape)
    layer.set_weights([p for p in (gamma, beta) if p is not None])
    return keras.ops.convert_to_numpy(layer(x))


@pytest.mark.parametrize("axis", [-1, 1, (1, 2), (-3, -1)])
def test_layer_norm_is_keras_layer_norm(rng: np.random.Generator, axis) -> None:
    x = rng.normal(3.0, 2.0, (3, 5, 7))
    shape = [x.shape[a] for a in sorted(a % 3 for a in np.atleast_1d(axis))]
    gamma, beta = rng.normal(size=shape), rng.normal(size=shape)
    layer = keras.layers.LayerNormalization(axis=axis, epsilon=0.01, dtype="float64")
    expected = _keras(layer, x, gamma, beta)
    np.testing.assert_allclose(oracle.layer_norm(x, gamma, beta, axis, 0.01).y, expected, 1e-10)


def test_rms_norm_is_keras_rms_norm(rng: np.random.Generator) -> None:
    x, gamma = rng.normal(3.0, 2.0, (4, 9)), rng.normal(size=9)
    expected = _keras(keras.layers.RMSNormalization(epsilon=0.01, dtype="float64"), x, gamma)
    np.testing.assert_allclose(oracle.rms_norm(x, gamma, epsilon=0.01).y, expected, 1e-10)


@pytest.mark.parametrize(("groups", "channel_axis"), [(1, -1), (4, -1), (8, -1), (4, 1), (8, 1)])
def test_group_norm_is_keras_group_norm(
    rng: np.random.Generator, groups: int, channel_axis: int
) -> None:
    x = rng.normal(3.0, 2.0, (2, 8, 3, 8))
    gamma, beta = rng.normal(size=8), rng.normal(size=8)
    layer = keras.layers.GroupNormalization(groups, channel_axis, epsilon=0.01, dtype="float64")
    expected = _keras(layer, x, gamma, beta)
    y = oracle.group_norm(x, gamma, beta, groups, channel_axis, 0.01).y
    np.testing.assert_allclose(y, expected, 1e-10)
    if groups == 8:
        y = oracle.instance_norm(x, gamma, beta, channel_axis, 0.01).y
        np.testing.assert_allclose(y, expected, 1e-10)


@pytest.mark.parametrize("subtract_mean", [True, False])
def test_backward_is_the_difference_quotient(rng: np.random.Generator, subtract_mean: bool) -> None:
    x, dy, gamma = rng.normal(1.0, 2.0, (3, 4)), rng.normal(size=(3, 4)), rng.normal(size=4)
    norm = oracle.layer_norm if subtract_mean else oracle.rms_norm
    got = oracle.backward(dy, x, gamma, (1,), (1,), 0.01, subtract_mean)

    def loss(x_, gamma_, beta_):
        return (norm(x_, gamma_, beta_, epsilon=0.01).y * dy).sum()

    quotients = oracle.central_differences(loss, [x, gamma, np.zeros(4)], 1e-6)
    for name, value, expected in zip(got._fields, got, quotients, strict=True):
        np.testing.assert_allclose(value, expected, 1e-6, 1e-8, err_msg=name)
