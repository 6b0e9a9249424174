"""Keras models as users run them: predict, evaluate, fit, export, and reloading."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import nv_norms_rewriter

SEED = 20


def network(policy: str = "float32") -> keras.Model:
    """Two layer norms, a group norm and an RMS norm; the same weights at every call."""
    keras.utils.set_random_seed(SEED)
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        inputs = keras.Input((6, 6, 3))
        x = keras.layers.Conv2D(8, 3, padding="same")(inputs)
        x = keras.layers.GroupNormalization(groups=4)(x)
        x = keras.layers.Activation("silu")(x)
        x = keras.layers.Conv2D(8, 2, strides=2)(x)
        x = keras.layers.LayerNormalization()(x)
        x = keras.layers.Flatten()(x)
        x = keras.layers.Dense(12)(x)
        x = keras.layers.RMSNormalization()(x)
        x = keras.layers.Dense(10, activation="gelu")(x)
        x = keras.layers.LayerNormalization(epsilon=1e-6)(x)
        outputs = keras.layers.Dense(2, dtype="float32")(x)
    finally:
        keras.config.set_dtype_policy(before)
    model = keras.Model(inputs, outputs)
    model.compile("sgd", "mse", jit_compile=False)
    return model


EXPECTED = {"group_norm": 1, "layer_norm": 2, "rms_norm": 1}


def data(count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(SEED)
    x = rng.normal(size=(count, 6, 6, 3)).astype("float32")
    return x, rng.normal(size=(count, 2)).astype("float32")


def fused_kinds() -> dict[str, int]:
    counts: dict[str, int] = {}
    for record in nv_norms_rewriter.report():
        if record.fused and record.direction == "forward":
            counts[record.kind] = counts.get(record.kind, 0) + 1
    return counts


def both(action):
    """What `action` returns without the rewriter, with it, and what was fused."""
    with nv_norms_rewriter.disabled():
        stock = action()
    nv_norms_rewriter.clear_report()
    return stock, action(), fused_kinds()


@pytest.mark.sampled(2)
# 8 = 2 batches of 4 (a static shape); 6 has a ragged last batch (traced again with unknown batch).
@pytest.mark.parametrize(("count", "traces"), [(8, 1), (6, 2)])
@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16"])
def test_predict(count, traces, policy):
    x, _ = data(count)
    stock, fused, kinds = both(lambda: network(policy).predict(x, batch_size=4, verbose=0))
    assert kinds == {kind: traces * number for kind, number in EXPECTED.items()}
    tolerance = {"float32": 1e-5, "mixed_float16": 5e-3, "mixed_bfloat16": 4e-2}[policy]
    np.testing.assert_allclose(fused, stock, rtol=tolerance, atol=tolerance)


def test_evaluate():
    x, y = data(8)
    stock, fused, kinds = both(lambda: network().evaluate(x, y, batch_size=4, verbose=0))
    assert kinds == EXPECTED
    np.testing.assert_allclose(fused, stock, rtol=1e-5)


@pytest.mark.parametrize("count", [8, 6])
def test_fit_ends_with_the_same_weights(count):
    x, y = data(count)

    def train():
        model = network()
        model.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0)
        return model.get_weights()

    stock, fused, kinds = both(train)
    assert kinds == EXPECTED
    for a, b in zip(fused, stock, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_exported_model_is_fused_when_it_serves(tmp_path):
    x, _ = data(4)
    with nv_norms_rewriter.disabled():
        network().export(str(tmp_path / "served"), verbose=False)

    def serve():
        loaded = tf.saved_model.load(str(tmp_path / "served"))
        return loaded.serve(x).numpy()

    stock, fused, kinds = both(serve)
    assert kinds == EXPECTED
    np.testing.assert_allclose(fused, stock, rtol=1e-5, atol=1e-5)


def test_function_around_a_model_and_its_gradient():
    x, y = data(4)

    def loss_and_gradients():
        model = network()

        @tf.function
        def step(inputs, targets):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(inputs, training=True) - targets))
            return loss, tape.gradient(loss, model.trainable_variables)

        return [t.numpy() for t in tf.nest.flatten(step(x, y))]

    stock, fused, kinds = both(loss_and_gradients)
    assert kinds == EXPECTED
    for a, b in zip(fused, stock, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5)
