"""What a layer rounds to half precision on the way, the fused op rounds as well.

With values that half precision cannot hold, a gamma that is rounded where the layer does not round
it (or the other way round) makes the mean error against float64 a good deal larger than stock's.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import nv_norms_rewriter
from oracle import layer_norm, rms_norm

from .values import numpy_dtype

SHAPE = (64, 96)


def fine(seed, size=SHAPE[-1]):
    return np.random.default_rng(seed).uniform(0.5, 1.5, size).astype("float32")


def outputs(layer, x):
    """Fused and stock outputs, and how many norms were fused."""
    with nv_norms_rewriter.disabled():
        stock = tf.function(layer)(tf.constant(x)).numpy()
    nv_norms_rewriter.clear_report()
    fused = tf.function(layer)(tf.constant(x)).numpy()
    return fused, stock, sum(record.fused for record in nv_norms_rewriter.report())


def mean_error(y, want):
    return np.abs(y.astype(np.float64) - want).mean()


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_rms_normalization_rounds_gamma(half):
    layer = keras.layers.RMSNormalization(dtype=f"mixed_{half}", epsilon=1e-6)
    layer.build(SHAPE)
    layer.scale.assign(fine(1))
    x = np.random.default_rng(2).normal(size=SHAPE).astype(numpy_dtype(half))
    fused, stock, count = outputs(layer, x)
    rounded = fine(1).astype(numpy_dtype(half))
    want = rms_norm(x, rounded, epsilon=1e-6).y
    assert count == 1
    assert mean_error(stock, want) < 0.8 * mean_error(stock, rms_norm(x, fine(1)).y)
    assert mean_error(fused, want) <= 1.05 * mean_error(stock, want)


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_layer_normalization_does_not_round_gamma(half):
    layer = keras.layers.LayerNormalization(dtype=f"mixed_{half}", epsilon=1e-3)
    layer.build(SHAPE)
    layer.gamma.assign(fine(3))
    layer.beta.assign(fine(4))
    x = np.random.default_rng(5).normal(size=SHAPE).astype(numpy_dtype(half))
    fused, stock, count = outputs(layer, x)
    want = layer_norm(x, fine(3), fine(4), epsilon=1e-3).y
    assert count == 1
    assert mean_error(fused, want) <= 1.05 * mean_error(stock, want)
