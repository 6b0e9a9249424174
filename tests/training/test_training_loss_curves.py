"""Fifty steps of SGD, stock and fused, from the same weights: the losses are the same but for
rounding.

Why a bound of this kind: one step's gradients differ by rounding, say by a relative d. Gradient
descent with a step small enough to descend moves the loss by the sum over the steps of
rate * |g|^2, which is the loss that it takes away; so the difference that all steps add up to is
about d times that, at most d times the first loss. d is a few units in the last place of what the
steps compute in: float32, or float16 between the layers of a mixed model.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from training_models import CASES, Case
from training_steps import assert_counts

import nv_norms_rewriter

STEPS = 50
UNITS = {"float32": 16 * 2.0**-23, "mixed_float16": 4 * 2.0**-11}
# The transformer holds the one's norms in both policies, the other's are here in mixed_float16.
_LONG = {("mixed_float16", "convnext"), ("float32", "diffusion_unet")}
_PARAMETERS = [
    pytest.param(
        case,
        policy,
        size,
        id=f"{case.name}-{policy}-{'large' if size else 'small'}",
        marks=[pytest.mark.slow] if size or (policy, case.name) in _LONG else [],
    )
    for size in (0, 1)
    for case in CASES
    for policy in UNITS
]


class _Losses(keras.callbacks.Callback):
    """The loss of each step, where Keras gives the mean of all steps so far."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[float] = []

    def on_train_batch_end(self, batch: int, logs: dict[str, float]) -> None:
        self.values.append(float(logs["loss"]))
        self.model.reset_metrics()


def _train(case: Case, policy: str, size: int, seed: int, weights=None):
    """The loss of each step, and the weights at the start."""
    keras.utils.set_random_seed(seed)
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        model, shapes = case.make(size)
    finally:
        keras.config.set_dtype_policy(before)
    if weights is not None:
        model.set_weights(weights)
    start = model.get_weights()
    inputs, target = case.data(model, shapes, seed)
    batch = tf.data.Dataset.from_tensors((tuple(inputs), target)).repeat(STEPS)
    model.compile(keras.optimizers.SGD(case.rates[size]), "mse", jit_compile=False)
    losses = _Losses()
    model.fit(batch, shuffle=False, verbose=0, callbacks=[losses])
    return np.array(losses.values), start


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case,policy,size", _PARAMETERS)
def test_loss_curves_are_the_same(rng, case: Case, policy: str, size: int) -> None:
    seed = int(rng.integers(2**31))
    with nv_norms_rewriter.disabled():
        stock, weights = _train(case, policy, size, seed)
    nv_norms_rewriter.clear_report()
    fused, _ = _train(case, policy, size, seed, weights)
    assert_counts(nv_norms_rewriter.report(), case.norms[size], case.norms[size])
    assert stock[-1] < 0.9 * stock[0], f"nothing was learned: {stock[0]} ... {stock[-1]}"
    assert len(stock) == len(fused) == STEPS
    apart = np.abs(stock - fused).max() / stock[0]
    print("apart", apart)
    assert apart <= UNITS[policy]
