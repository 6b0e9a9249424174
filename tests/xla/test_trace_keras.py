"""Keras models that XLA compiles: every way to run one computes what the stock model computes."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from traced import ROOT, found, result

import nv_norms_rewriter
from stock import stock

pytestmark = pytest.mark.usefixtures("every_norm")

NORMS = 4


def build(seed: int = 1, model_class: type[keras.Model] = keras.Model) -> keras.Model:
    """A model with one norm of each kind, always the same weights."""
    keras.utils.set_random_seed(seed)
    image = keras.Input((4, 6, 8))
    y = keras.layers.LayerNormalization()(keras.layers.Dense(8)(image))
    y = keras.layers.GroupNormalization(groups=-1)(y + image)
    y = keras.layers.GroupNormalization(groups=2)(keras.layers.Dense(8, "gelu")(y))
    return model_class(image, keras.layers.RMSNormalization()(y))


@pytest.fixture
def x(rng: np.random.Generator) -> np.ndarray:
    return rng.normal(size=(12, 4, 6, 8)).astype(np.float32)


@pytest.fixture
def y(x: np.ndarray) -> np.ndarray:
    return np.tanh(x[..., ::-1]).copy()


def both(run: Callable[[], Any]) -> tuple[Any, Any]:
    """What `run` returns in TensorFlow alone, op by op, and with the rewriter on."""
    expected = stock(run)
    nv_norms_rewriter.clear_report()
    return expected, run()


def losses(x: Any, y: Any, batch_size: int | None = 4, **options: Any) -> list[float]:
    model = build()
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=True, **options)
    history = model.fit(x, y, batch_size=batch_size, epochs=4, verbose=0, shuffle=False)
    return history.history["loss"]


def test_fit(x: np.ndarray, y: np.ndarray) -> None:
    expected, fused = both(lambda: losses(x, y))
    np.testing.assert_allclose(fused, expected, 1e-5)
    assert (found(), found("backward")) == (NORMS, NORMS)
    assert not nv_norms_rewriter.report().refused


def test_fit_is_stock_to_the_bit_where_all_is_left(x: np.ndarray, y: np.ndarray) -> None:
    with nv_norms_rewriter.disabled():
        expected = losses(x, y)
    nv_norms_rewriter.clear_report()
    nv_norms_rewriter.configure(xla="none")
    assert losses(x, y) == expected
    report = nv_norms_rewriter.report()
    assert len(report) == 2 * NORMS and {r.reason for r in report} == {"left_to_xla"}


def test_fit_with_a_batch_of_unknown_size(x: np.ndarray, y: np.ndarray) -> None:
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(5)
    expected, fused = both(lambda: losses(batches, None, None))
    np.testing.assert_allclose(fused, expected, 1e-5)
    assert (found(), found("backward")) == (NORMS, NORMS)


def test_several_steps_per_execution(x: np.ndarray, y: np.ndarray) -> None:
    expected, fused = both(lambda: losses(x, y, steps_per_execution=2))
    np.testing.assert_allclose(fused, expected, 1e-5)
    assert (found(), found("backward")) == (NORMS, NORMS)


@pytest.mark.parametrize(
    "policy", ["mixed_float16", pytest.param("mixed_bfloat16", marks=pytest.mark.slow)]
)
def test_mixed_precision(x: np.ndarray, y: np.ndarray, policy: str) -> None:
    keras.config.set_dtype_policy(policy)
    try:
        expected, fused = both(lambda: losses(x, y))
    finally:
        keras.config.set_dtype_policy("float32")
    np.testing.assert_allclose(fused, expected, 1e-2)
    assert (found(), found("backward")) == (NORMS, NORMS)


def test_run_eagerly_is_left_alone(x: np.ndarray, y: np.ndarray) -> None:
    def run() -> list[float]:
        model = build()
        model.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=True)
        return model.fit(x, y, batch_size=6, epochs=2, verbose=0, shuffle=False).history["loss"]

    expected, with_rewriter = both(run)
    np.testing.assert_allclose(with_rewriter, expected, 1e-6)
    assert found() == 0


def test_evaluate_and_predict(x: np.ndarray, y: np.ndarray) -> None:
    def run() -> list[Any]:
        model = build()
        model.compile("sgd", "mse", jit_compile=True, steps_per_execution=2)
        return [model.evaluate(x, y, batch_size=4, verbose=0), model.predict(x, 5, verbose=0)]

    expected, fused = both(run)
    np.testing.assert_allclose(fused[0], expected[0], 1e-5)
    np.testing.assert_allclose(fused[1], expected[1], 1e-4, 1e-4)
    assert found() >= 2 * NORMS and found("backward") == 0


class OwnStep(keras.Model):
    """Trains by a step of its own, which also takes the gradient of its input."""

    def train_step(self, batch: tuple[tf.Tensor, tf.Tensor]) -> dict[str, tf.Tensor]:
        x, y = batch
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                inner.watch(x)
                loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
            slope = tf.reduce_mean(tf.square(inner.gradient(loss, x)))
            total = loss + slope
        variables = [v.value for v in self.trainable_variables]
        self.optimizer.apply(outer.gradient(total, variables), self.trainable_variables)
        return {"loss": loss}


def test_own_train_step_with_second_derivatives(x: np.ndarray, y: np.ndarray) -> None:
    def run() -> list[float]:
        model = build(model_class=OwnStep)
        model.compile(keras.optimizers.SGD(0.1), jit_compile=True)
        return model.fit(x, y, batch_size=4, epochs=3, verbose=0, shuffle=False).history["loss"]

    expected, fused = both(run)
    np.testing.assert_allclose(fused, expected, 1e-4)
    assert found() == NORMS


def test_tf_keras(x: np.ndarray, y: np.ndarray) -> None:
    tf_keras = pytest.importorskip("tf_keras")

    def run() -> list[float]:
        tf_keras.utils.set_random_seed(1)
        image = tf_keras.Input((4, 6, 8))
        out = tf_keras.layers.LayerNormalization(epsilon=1e-6)(tf_keras.layers.Dense(8)(image))
        model = tf_keras.Model(image, tf_keras.layers.Dense(8)(out))
        model.compile(tf_keras.optimizers.SGD(0.1), "mse", jit_compile=True)
        return model.fit(x, y, batch_size=4, epochs=3, verbose=0, shuffle=False).history["loss"]

    expected, fused = both(run)
    np.testing.assert_allclose(fused, expected, 1e-5)
    assert found() == found("backward") >= 1


MIRRORED = """
import json, keras, numpy as np, tensorflow as tf
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2)
import nv_norms_rewriter
nv_norms_rewriter.configure(xla="all")

def results():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    keras.utils.set_random_seed(1)
    with strategy.scope():
        x = keras.Input((6, 8))
        y = keras.layers.LayerNormalization()(keras.layers.Dense(8)(x))
        model = keras.Model(x, keras.layers.Dense(8)(y))
        model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
    data = np.random.default_rng(0).normal(size=(16, 6, 8)).astype(np.float32)
    history = model.fit(data, data[..., ::-1], batch_size=8, epochs=3, verbose=0, shuffle=False)

    @tf.function(jit_compile=True)
    def step(x):
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        return tf.tanh((x - mean) * tf.math.rsqrt(variance + 1e-3) * tf.range(1.0, 9.0))

    run = tf.function(lambda batch: strategy.run(step, (batch,)))
    batches = tf.data.Dataset.from_tensor_slices(data).batch(8)
    parts = [part for batch in strategy.experimental_distribute_dataset(batches)
             for part in strategy.experimental_local_results(run(batch))]
    return history.history["loss"], np.concatenate(parts).tolist()

with nv_norms_rewriter.disabled():
    stock = results()
fused = results()
report = nv_norms_rewriter.report()
print(json.dumps([stock, fused, sorted({r.where for r in report.fused})]))
"""


def test_mirrored_strategy() -> None:
    stock, fused, where = result(MIRRORED)[0]
    for actual, expected in zip(fused, stock, strict=True):
        np.testing.assert_allclose(actual, expected, 1e-5, 1e-5)
    assert where == ["graph", "xla"]


def _task(name: str) -> Any:
    spec = importlib.util.spec_from_file_location("models", ROOT / "benchmarks" / "models.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.MODELS[name](True)


@pytest.mark.parametrize(
    "name,norms",
    [
        pytest.param("bert", 5, marks=pytest.mark.slow),
        pytest.param("unet3d", 14, marks=pytest.mark.slow),
        pytest.param("convnext", 23, marks=pytest.mark.slow),
    ],
)
def test_small_models(name: str, norms: int) -> None:
    def run() -> list[float]:
        keras.utils.set_random_seed(1)
        model, x, y, _ = _task(name)
        model.compile(keras.optimizers.Adam(1e-4), "mse", jit_compile=True)
        history = model.fit(x, y, batch_size=len(y), epochs=5, verbose=0, shuffle=False)
        return history.history["loss"]

    expected, fused = both(run)
    np.testing.assert_allclose(fused, expected, 1e-4)
    assert (found(), found("backward")) == (norms, norms)
    assert not nv_norms_rewriter.report().refused
