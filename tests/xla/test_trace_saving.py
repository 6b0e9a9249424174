"""What is saved loads where this package is not installed, and computes the same there."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from saved import SIZE, Module, batch, elsewhere, holds_fused_ops, ops_in_saved_model
from traced import Layer, close, found, ops_in, result

import nv_norms_rewriter

pytestmark = pytest.mark.usefixtures("every_norm")


@pytest.fixture
def module(rng: np.random.Generator) -> Module:
    return Module(rng)


@pytest.fixture
def x(rng: np.random.Generator) -> np.ndarray:
    return batch(rng)


def test_traced_again_while_saving(module: Module, x: np.ndarray, tmp_path: Path) -> None:
    close(module.compiled(x), module.layer.exact(x))
    assert found() == 1
    tf.saved_model.save(module, str(tmp_path))
    assert not holds_fused_ops(tmp_path)
    loaded = tf.saved_model.load(str(tmp_path))
    close(loaded.compiled(x), module.layer.exact(x))


def test_concrete_functions_that_were_traced_before(
    module: Module, x: np.ndarray, tmp_path: Path
) -> None:
    signatures = {
        "forward": module.compiled.get_concrete_function(),
        "backward": module.gradients.get_concrete_function(),
    }
    assert ops_in(signatures["forward"].graph) == {"FusedLayerNorm"}
    assert ops_in(signatures["backward"].graph) == {"FusedLayerNorm", "FusedLayerNormGrad"}
    close(module.compiled(x), module.layer.exact(x))
    tf.saved_model.save(module, str(tmp_path), signatures)
    assert not holds_fused_ops(tmp_path)
    y = module.layer.exact(x)
    close(elsewhere(tmp_path, x, "forward")["output_0"], y)
    exact = module.layer.exact_gradients(x, 3.0 * y**2)
    got = elsewhere(tmp_path, x, "backward")
    for name, value in zip(("dx", "dgamma", "dbeta"), exact, strict=True):
        close(got[name], value)
    close(module.compiled(x), y)
    assert ops_in(signatures["forward"].graph) == {"FusedLayerNorm"}, "the program keeps its own"


def test_on_request(module: Module, x: np.ndarray, tmp_path: Path) -> None:
    nv_norms_rewriter.configure(saved_models="fused")
    concrete = module.compiled.get_concrete_function()
    tf.saved_model.save(module, str(tmp_path), concrete)
    assert holds_fused_ops(tmp_path)
    loaded = tf.saved_model.load(str(tmp_path))
    y = loaded.signatures["serving_default"](tf.constant(x))["output_0"]
    close(y, module.layer.exact(x))


def test_what_is_traced_while_saving_on_request(
    module: Module, x: np.ndarray, tmp_path: Path
) -> None:
    nv_norms_rewriter.configure(saved_models="fused")
    signatures = {"forward": module.compiled, "backward": module.gradients}
    tf.saved_model.save(module, str(tmp_path), signatures)
    assert {"FusedLayerNorm", "FusedLayerNormGrad"} <= ops_in_saved_model(tmp_path)
    y = module.layer.exact(x)
    close(elsewhere(tmp_path, x, "forward", with_package=True)["output_0"], y)
    exact = module.layer.exact_gradients(x, 3.0 * y**2)
    got = elsewhere(tmp_path, x, "backward", with_package=True)
    for name, value in zip(("dx", "dgamma", "dbeta"), exact, strict=True):
        close(got[name], value)


class Ordinary(tf.Module):
    """Functions that XLA does not compile, and tapes."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.layer = Layer(rng, SIZE)
        self.function = tf.function(self.layer, autograph=False)

    @tf.function(input_signature=[tf.TensorSpec([None, SIZE])], autograph=False)
    def forward(self, x: tf.Tensor) -> tf.Tensor:
        return self.function(x)

    @tf.function(input_signature=[tf.TensorSpec([None, SIZE])], autograph=False)
    def gradients(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            once = self.function(x) ** 3
            _, y = tf.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, self.layer(y)), (0, x))
            twice = y**3
        return {"once": tape.gradient(once, x), "twice": tape.gradient(twice, x)}


def test_what_a_tape_differentiates_while_saving_on_request(
    rng: np.random.Generator, x: np.ndarray, tmp_path: Path
) -> None:
    nv_norms_rewriter.configure(saved_models="fused")
    module = Ordinary(rng)
    tf.saved_model.save(module, str(tmp_path), {"backward": module.gradients})
    assert {"FusedLayerNorm", "FusedLayerNormGrad"} <= ops_in_saved_model(tmp_path)
    exact, dx = module.layer.exact, lambda x, dy: module.layer.exact_gradients(x, dy)[0]
    y = exact(x)
    got = elsewhere(tmp_path, x, "backward", with_package=True)
    close(got["once"], dx(x, 3.0 * y**2))
    close(got["twice"], dx(x, dx(y, 3.0 * exact(y) ** 2)))


def test_ops_that_a_program_calls_itself_stay(x: np.ndarray, tmp_path: Path) -> None:
    from nv_norms_rewriter import _library

    op = _library.ops().fused_layer_norm

    class Own(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None, SIZE])], autograph=False)
        def call(self, x: tf.Tensor) -> tf.Tensor:
            return op(x=x, scale=[], offset=[], out_type=tf.float32)[0]

    tf.saved_model.save(Own(), str(tmp_path))
    assert holds_fused_ops(tmp_path)


class Compiling(keras.layers.Layer):
    """A layer whose call XLA compiles, whatever its model does."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = keras.layers.LayerNormalization()
        self.function = tf.function(lambda x: self.norm(x), jit_compile=True, autograph=False)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return self.function(x)

    def compute_output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape


def keras_model() -> keras.Model:
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((4, SIZE)),
            keras.layers.Dense(SIZE),
            keras.layers.GroupNormalization(groups=2),
            keras.layers.RMSNormalization(),
            keras.layers.GroupNormalization(groups=-1),
            keras.layers.LayerNormalization(),
        ]
    )
    model.compile("adam", "mse", jit_compile=True)
    return model


def trained(rng: np.random.Generator) -> tuple[keras.Model, np.ndarray, np.ndarray]:
    """The model with a layer that compiles, an input and what it predicts of it."""
    model = keras_model()
    model.add(Compiling())
    model.compile("adam", "mse", jit_compile=True)
    x = rng.normal(size=(6, 4, SIZE)).astype(np.float32)
    model.fit(x, x, verbose=0)
    return model, x, model.predict(x, verbose=0)


def test_keras_export_after_training(rng: np.random.Generator, tmp_path: Path) -> None:
    model, x, y = trained(rng)
    assert found() == 2 * 4 + 1
    model.export(str(tmp_path), verbose=False)
    assert not holds_fused_ops(tmp_path)
    (got,) = elsewhere(tmp_path, x).values()
    np.testing.assert_allclose(got, y, 1e-4, 1e-5)


def test_keras_export_on_request(rng: np.random.Generator, tmp_path: Path) -> None:
    """Keras has XLA compile nothing of what it exports; the layer does, of itself."""
    nv_norms_rewriter.configure(saved_models="fused")
    model, x, y = trained(rng)
    model.export(str(tmp_path), verbose=False)
    fused = {op for op in ops_in_saved_model(tmp_path) if op.startswith("Fused")}
    assert fused == {"FusedLayerNorm"}
    (got,) = elsewhere(tmp_path, x, with_package=True).values()
    np.testing.assert_allclose(got, y, 1e-4, 1e-5)


def test_keras_files_and_checkpoints(rng: np.random.Generator, tmp_path: Path) -> None:
    model = keras_model()
    x = rng.normal(size=(6, 4, SIZE)).astype(np.float32)
    model.fit(x, x, verbose=0)
    np.save(tmp_path / "x.npy", x)
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    checkpoint = tf.train.Checkpoint(model=model).save(str(tmp_path / "checkpoint"))
    got, _ = result(
        """
import json, sys, keras, numpy as np, tensorflow as tf
tf.config.experimental.enable_tensor_float_32_execution(False)
folder, checkpoint = sys.argv[1:]
x = np.load(folder + "/x.npy")
model = keras.models.load_model(folder + "/model.keras")
ys = [model.predict(x, verbose=0)]
model.load_weights(folder + "/model.weights.h5")
ys.append(model.predict(x, verbose=0))
tf.train.Checkpoint(model=model).restore(checkpoint).assert_existing_objects_matched()
ys.append(model.predict(x, verbose=0))
assert "nv_norms_rewriter" not in sys.modules
print(json.dumps([y.tolist() for y in ys]))
""",
        tmp_path,
        checkpoint,
    )
    for y in got:
        np.testing.assert_allclose(y, model.predict(x, verbose=0), 1e-4, 1e-5)
