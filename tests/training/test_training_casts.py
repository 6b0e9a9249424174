"""Mixed policies between float32 neighbours: fused norms take in the Casts around them, and what
comes out is as close to float64 as float32 can be."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from training_norms import FOUR, TF_KERAS_LAYER, Norm, fit, fit_in_float64
from training_steps import assert_counts, normal, run_both, step_of

import nv_norms_rewriter
import oracle

POLICIES = ["mixed_float16", "mixed_bfloat16"]


def _assert_in_float32(stock, fused, exact) -> None:
    """Fused is as close as float32; stock, which rounds to half, is not."""
    for number, (s, f, e) in enumerate(zip(stock, fused, exact, strict=True)):
        off_stock, off_fused = (np.abs(v - e).max() / np.abs(e).max() for v in (s, f))
        assert s.dtype == f.dtype == np.float32
        assert off_fused < 1e-5 < 1e-4 < off_stock < 5e-2, (number, off_fused, off_stock)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("norm", [*FOUR, TF_KERAS_LAYER], ids=lambda norm: norm.name)
def test_step_between_float32(rng, norm: Norm, policy: str) -> None:
    x, dy = normal(rng, *norm.shape, mean=1.0), normal(rng, *norm.shape)
    # What some layers round first is no matter of the Casts around the norm.
    values = [tf.cast(tf.cast(v, tf.bfloat16), tf.float32).numpy() for v in norm.parameters(rng)]
    layer, variables = norm.build(values, policy)
    step = step_of(lambda x: tf.cast(layer(x), tf.float32), variables, x, dy)
    stock, fused, report = run_both(step, [x, dy])
    exact = [norm.forward(x, values), *norm.backward(dy, x, values)]
    # Keras' RMSNormalization casts gamma to half, and with it dgamma.
    count = 2 if norm.formula == "rms" else len(exact)
    _assert_in_float32(stock[:count], fused[:count], exact[:count])
    assert_counts(report, {norm.kind: 1}, {norm.kind: 1})


@pytest.mark.sampled(4)
@pytest.mark.parametrize("compiled", [False, True], ids=["function", "xla"])
@pytest.mark.parametrize("norm", FOUR, ids=lambda norm: norm.name)
def test_fit_with_a_norm_first_and_a_loss_in_float32(rng, norm: Norm, compiled: bool) -> None:
    x, target = normal(rng, 8, *norm.shape[1:]), normal(rng, 8, *norm.shape[1:])
    values = norm.parameters(rng)

    with nv_norms_rewriter.disabled():
        stock = fit(norm, values, x, target, policy="mixed_float16", jit_compile=compiled)
    nv_norms_rewriter.clear_report()
    nv_norms_rewriter.configure(xla="all")
    try:
        fused = fit(norm, values, x, target, policy="mixed_float16", jit_compile=compiled)
    finally:
        nv_norms_rewriter.configure(xla="auto")
    exact = fit_in_float64(norm, values, x, target)
    for old, got, start, end in zip(stock, fused, values, exact, strict=True):
        size = np.abs(start - end).max()
        errors = [np.abs(new - end).max() / size for new in (old, got)]
        if compiled:
            # y and dy are half between the op and the loss. On a GPU XLA rounds neither in its own.
            on_gpu = bool(tf.config.list_physical_devices("GPU"))
            assert errors[1] < (2.0**-10 if on_gpu else 2.0 * errors[0] + 2e-5)
        else:
            assert errors[1] < max(2e-5, errors[0])
    assert_counts(nv_norms_rewriter.report(), {norm.kind: 1}, {norm.kind: 1})


@pytest.mark.parametrize("narrow", [tf.float16, tf.bfloat16], ids=lambda dtype: dtype.name)
def test_beta_behind_a_cast_that_gamma_is_before(rng, narrow: tf.DType) -> None:
    """dgamma is float32 and dbeta narrow, which one op does not give: dbeta stays a sum."""
    gamma = tf.Variable(rng.uniform(0.5, 2.0, 8).astype("f"))
    beta = tf.Variable(tf.cast(rng.normal(size=8), narrow))
    x, dy = normal(rng, 6, 5, 8, mean=1.0), normal(rng, 6, 5, 8)

    @tf.function
    def step(x, dy):
        with tf.GradientTape() as tape:
            tape.watch(x)
            mean, variance = tf.nn.moments(tf.cast(x, tf.float32), [-1], keepdims=True)
            xhat = (tf.cast(x, tf.float32) - mean) * tf.math.rsqrt(variance + 1e-3)
            y = tf.cast(xhat * gamma, narrow) + beta
        return tape.gradient(y, [x, gamma, beta], dy)

    x, dy = tf.cast(x, narrow), tf.cast(dy, narrow)
    nv_norms_rewriter.clear_report()
    got = step(x, dy)
    assert nv_norms_rewriter.report().counts["layer_norm backward"] == 1
    wide = [tf.cast(value, tf.float64).numpy() for value in (dy, x)]
    exact = oracle.backward(*wide, gamma.numpy(), (-1,), (-1,), 1e-3)
    for value, want in zip(got, exact, strict=True):
        unit = 2.0**-7 if narrow == tf.bfloat16 else 2.0**-10
        wide = tf.cast(value, tf.float64).numpy()
        np.testing.assert_allclose(wide, want, 2 * unit, 2 * unit * np.abs(want).max())
