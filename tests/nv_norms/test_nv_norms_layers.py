"""nv_norms' Keras layers: results of the formulas, everything else as Keras' layers have it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from nv_norms_cases import assert_close

import nv_norms
import oracle

# Our layer, Keras' layer, arguments for both, shape of the input.
Twin = tuple[type, type, dict[str, Any], tuple[int, ...]]
LAYER = (nv_norms.LayerNormalization, keras.layers.LayerNormalization)
GROUP = (nv_norms.GroupNormalization, keras.layers.GroupNormalization)
RMS = (nv_norms.RMSNormalization, keras.layers.RMSNormalization)


class _StockInstance(keras.layers.GroupNormalization):
    """What Keras offers in place of an InstanceNormalization."""

    def __init__(self, axis: int = -1, **kwargs: Any) -> None:
        super().__init__(groups=-1, axis=axis, **kwargs)


INSTANCE = (nv_norms.InstanceNormalization, _StockInstance)

TWINS: dict[str, Twin] = {
    "layer": (*LAYER, {}, (4, 3, 8)),
    "layer, two axes": (*LAYER, {"axis": [1, 2]}, (4, 3, 8)),
    "layer, middle axis": (*LAYER, {"axis": 1}, (4, 3, 8)),
    "layer, no scale": (*LAYER, {"scale": False, "epsilon": 0.1}, (4, 8)),
    "layer, no center": (*LAYER, {"center": False}, (4, 8)),
    "layer, neither": (*LAYER, {"center": False, "scale": False}, (4, 8)),
    "layer, rms_scaling": (*LAYER, {"rms_scaling": True}, (4, 8)),
    "group": (*GROUP, {"groups": 4}, (4, 5, 6, 8)),
    "group, one": (*GROUP, {"groups": 1, "epsilon": 1e-5}, (4, 5, 8)),
    "group, all": (*GROUP, {"groups": -1}, (4, 5, 8)),
    "group, channels first": (*GROUP, {"groups": 2, "axis": 1}, (4, 8, 5, 6)),
    "group, axis -3": (*GROUP, {"groups": 2, "axis": -3}, (4, 8, 5, 6)),
    "group, axis in between": (*GROUP, {"groups": 2, "axis": 2}, (4, 5, 8, 6)),
    "group, no spatial axis": (*GROUP, {"groups": 2}, (4, 8)),
    "group, no scale": (*GROUP, {"groups": 2, "scale": False}, (4, 5, 8)),
    "instance": (*INSTANCE, {}, (2, 4, 5, 3, 8)),
    "instance, channels first": (*INSTANCE, {"axis": 1}, (2, 8, 4, 5)),
    "instance, no center": (*INSTANCE, {"center": False}, (2, 4, 5, 8)),
    "rms": (*RMS, {}, (4, 3, 8)),
    "rms, two axes": (*RMS, {"axis": [-2, -1], "epsilon": 1e-3}, (4, 3, 8)),
    "rms, middle axis": (*RMS, {"axis": 1}, (4, 8, 8)),
}
POLICIES = ["float32", "mixed_float16", "mixed_bfloat16", "float16", "float64"]


@pytest.fixture(autouse=True)
def _float32_afterwards() -> Iterator[None]:
    yield
    keras.config.set_dtype_policy("float32")


def _pair(name: str, rng: np.random.Generator, **extra: Any) -> tuple[Any, Any, np.ndarray]:
    """Both layers with the same random weights, and an input."""
    ours, stock, arguments, shape = TWINS[name]
    layers = [ours(**arguments, **extra), stock(**arguments, **extra)]
    for layer in layers:
        layer.build(shape)
    weights = [rng.normal(1.0, 0.3, weight.shape) for weight in layers[0].weights]
    for layer in layers:
        layer.set_weights(weights)
    return *layers, rng.normal(0.5, 2.0, shape).astype(np.float32)


def _expected(layer: Any, name: str, x: np.ndarray) -> np.ndarray:
    """The formula with the layer's arguments and weights."""
    axis = layer.axis
    epsilon = layer.epsilon
    if isinstance(layer, nv_norms.RMSNormalization):
        # Keras multiplies scale along the last axes, whatever the axis.
        return oracle.rms_norm(x, axis=axis, epsilon=epsilon).y * np.asarray(layer.scale)
    gamma, beta = (None if w is None else np.asarray(w) for w in (layer.gamma, layer.beta))
    if isinstance(layer, nv_norms.LayerNormalization):
        out = oracle.layer_norm(x, gamma, beta, tuple(axis), epsilon)
        if not layer.rms_scaling:
            return out.y
        return x * out.rstd * gamma
    return oracle.group_norm(x, gamma, beta, layer.groups, axis, epsilon).y


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", TWINS)
def test_results(name: str, policy: str, rng: np.random.Generator) -> None:
    keras.config.set_dtype_policy(policy)
    ours, stock, x = _pair(name, rng)
    y, y_stock = ours(x), stock(x)
    assert y.dtype == y_stock.dtype == ours.compute_dtype
    if name.startswith("rms"):  # autocast: Keras casts these inputs and scales to half first
        x = tf.cast(x, ours.compute_dtype).numpy()
        ours.scale.assign(tf.cast(tf.cast(ours.scale, ours.compute_dtype), ours.scale.dtype))
    # A float32 input is normalized in float32, also under float64.
    precision = "float32" if policy == "float64" and y.dtype == tf.float64 else y.dtype.name
    expected = _expected(ours, name, x)
    assert_close(y, expected, precision, "y", 16)
    error = np.abs(np.asarray(y, np.float64) - expected).max()
    error_stock = np.abs(np.asarray(y_stock, np.float64) - expected).max()
    assert error <= 2 * error_stock + 1e-12 * np.abs(expected).max()


@pytest.mark.parametrize("name", TWINS)
def test_gradients(name: str, rng: np.random.Generator) -> None:
    ours, stock, x = _pair(name, rng)
    dy = tf.constant(rng.normal(size=x.shape).astype(np.float32))
    gradients = []
    for layer in (ours, stock):
        given = tf.constant(x)
        with tf.GradientTape() as tape:
            tape.watch(given)
            y = layer(given)
        sources = [given, *layer.trainable_variables]
        gradients.append(tape.gradient(y, sources, output_gradients=dy))
    for got, wanted in zip(*gradients, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", TWINS)
def test_names_config_and_weights_are_those_of_keras(name: str, rng: np.random.Generator) -> None:
    ours, stock, arguments, shape = TWINS[name]
    extra = {} if name.startswith("rms") else {"gamma_initializer": "zeros"}
    if not name.startswith(("rms", "layer, rms")):
        extra |= {
            "beta_regularizer": keras.regularizers.L2(0.1),
            "beta_constraint": keras.constraints.NonNeg(),
        }
    layers = [kind(**arguments, **extra, name="same") for kind in (ours, stock)]
    configs = [layer.get_config() for layer in layers]
    if name.startswith("instance"):
        assert "groups" not in configs[0]
        del configs[1]["groups"]
    assert configs[0] == configs[1]
    for layer in layers:
        layer.build(shape)
    described = [
        [(w.name, w.path, w.shape, w.dtype, w.trainable) for w in layer.weights] for layer in layers
    ]
    assert described[0] == described[1]
    assert layers[0].supports_masking == layers[1].supports_masking
    assert len(layers[0].losses) == len(layers[1].losses)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layers[0]))
    assert type(again) is ours
    assert again.get_config() == layers[0].get_config()


@pytest.mark.parametrize("axis", [[1, -1], [-1, 1], (-2, 2)])
def test_positive_and_negative_axes(axis: Any, rng: np.random.Generator) -> None:
    layer = nv_norms.LayerNormalization(axis=axis)
    x = rng.normal(size=(4, 3, 8)).astype(np.float32)
    layer.build(x.shape)
    assert layer.gamma.shape == layer.beta.shape == (3, 8)
    layer.set_weights([rng.normal(size=(3, 8)) for _ in range(2)])
    expected = oracle.layer_norm(x, np.asarray(layer.gamma), np.asarray(layer.beta), (1, 2)).y
    assert_close(layer(x), expected, "float32", "y", 16)


def test_automatic_names() -> None:
    keras.backend.clear_session()
    names = [getattr(nv_norms, name)().name for name in nv_norms.__all__ if "Normal" in name]
    assert names == [
        "group_normalization",
        "instance_normalization",
        "layer_normalization",
        "rms_normalization",
    ]


def _model(layers: Any) -> keras.Model:
    inputs = keras.Input((8, 8, 3))
    x = keras.layers.Conv2D(8, 3)(inputs)
    x = layers.GroupNormalization(groups=4)(x)
    x = keras.layers.Conv2D(8, 3)(x)
    x = layers.LayerNormalization()(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    x = layers.RMSNormalization()(x)
    return keras.Model(inputs, keras.layers.Dense(2, dtype="float32")(x))


def test_a_model_tracks_trains_and_saves_the_weights(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    keras.utils.set_random_seed(1)
    keras.backend.clear_session()
    ours = _model(nv_norms)
    keras.backend.clear_session()
    stock = _model(keras.layers)
    assert [w.path for w in ours.weights] == [w.path for w in stock.weights]
    assert len(ours.trainable_weights) == 2 + 2 + 2 + 2 + 1 + 2
    stock.set_weights(ours.get_weights())
    x = rng.normal(size=(32, 8, 8, 3)).astype(np.float32)
    y = rng.normal(size=(32, 2)).astype(np.float32)
    losses = []
    for model in (ours, stock):
        model.compile(keras.optimizers.SGD(0.05), "mse")
        history = model.fit(x, y, batch_size=8, epochs=3, shuffle=False, verbose=0)
        losses.append(history.history["loss"])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)
    assert losses[0][-1] < losses[0][0]
    for got, wanted in zip(ours.get_weights(), stock.get_weights(), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-4)

    expected = ours.predict(x, verbose=0)
    ours.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    kinds = {type(layer) for layer in again.layers}
    assert {nv_norms.GroupNormalization, nv_norms.LayerNormalization} <= kinds
    np.testing.assert_array_equal(again.predict(x, verbose=0), expected)
    ours.save_weights(tmp_path / "w.weights.h5")
    stock.load_weights(tmp_path / "w.weights.h5")
    np.testing.assert_allclose(stock.predict(x, verbose=0), expected, rtol=1e-4, atol=1e-5)

    ours.export(tmp_path / "saved", verbose=False)
    served = tf.saved_model.load(str(tmp_path / "saved"))
    np.testing.assert_allclose(served.serve(x), expected, rtol=1e-4, atol=1e-5)


def test_training_inside_xla(rng: np.random.Generator) -> None:
    x = rng.normal(size=(16, 8, 8, 3)).astype(np.float32)
    y = rng.normal(size=(16, 2)).astype(np.float32)
    losses = []
    for jit_compile in (True, False):
        keras.utils.set_random_seed(3)
        model = _model(nv_norms)
        model.compile(keras.optimizers.SGD(0.05), "mse", jit_compile=jit_compile)
        history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
        losses.append(history.history["loss"])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)


def test_mixed_precision_training_with_a_scaled_loss(rng: np.random.Generator) -> None:
    keras.utils.set_random_seed(2)
    keras.config.set_dtype_policy("mixed_float16")
    model = _model(nv_norms)
    assert {w.dtype for w in model.weights} == {"float32"}
    model.compile("adam", "mse")  # Keras scales the loss by itself
    x = rng.normal(size=(32, 8, 8, 3)).astype(np.float32)
    y = rng.normal(size=(32, 2)).astype(np.float32)
    losses = model.fit(x, y, batch_size=8, epochs=4, verbose=0).history["loss"]
    assert np.isfinite(losses).all() and losses[-1] < losses[0]


def test_one_layer_is_one_op() -> None:
    layer = nv_norms.LayerNormalization()
    layer.build((None, 8))
    graph = tf.function(layer).get_concrete_function(tf.TensorSpec((None, 8))).graph
    kinds = [op.type for op in graph.get_operations()]
    assert kinds.count("FusedLayerNorm") == 1
    assert not {"Mean", "Rsqrt", "SquaredDifference"} & set(kinds)


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool"])
def test_integers_become_float32(dtype: str) -> None:
    x = np.arange(12).reshape(3, 4).astype(dtype)
    y = nv_norms.LayerNormalization()(x)
    expected = oracle.layer_norm(x.astype(np.float64)).y
    assert_close(y, expected, "float32", "y")
    stock = keras.layers.LayerNormalization()(x)
    # Keras cuts off the fractions; what an unsigned type makes of -1.3 is another on a GPU.
    elsewhere = dtype == "uint8" and tf.config.list_physical_devices("GPU")
    ours = expected > -1 if elsewhere else np.full(x.shape, True)
    np.testing.assert_array_equal(np.asarray(stock)[ours], expected[ours].astype(dtype))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "kind", [nv_norms.LayerNormalization, nv_norms.InstanceNormalization, nv_norms.RMSNormalization]
)
def test_integers_become_what_a_symbolic_call_says(kind: type, policy: str) -> None:
    x = np.arange(24).reshape(2, 3, 4)
    layer = kind(dtype=policy)
    y = layer(tf.constant(x, tf.int32))
    assert y.dtype.name == layer.compute_output_spec(keras.KerasTensor((2, 3, 4), "int32")).dtype
    if policy == "float64" and kind is nv_norms.RMSNormalization:
        np.testing.assert_allclose(y, oracle.rms_norm(x.astype(np.float64)).y, 1e-14)


def test_built_layer_has_the_axes_that_it_was_given() -> None:
    ours, stock = (
        kind(axis=[1, -1])
        for kind in (nv_norms.LayerNormalization, keras.layers.LayerNormalization)
    )
    for layer in (ours, stock):
        layer.build((2, 3, 4, 5))
    assert ours.get_config()["axis"] == stock.get_config()["axis"] == [-1, 1]
    again = nv_norms.LayerNormalization.from_config(ours.get_config())
    assert again(np.ones((2, 3, 4), np.float32)).shape == (2, 3, 4)


@pytest.mark.parametrize(
    "kind", [nv_norms.LayerNormalization, nv_norms.InstanceNormalization, nv_norms.RMSNormalization]
)
def test_inputs_that_no_layer_normalizes(kind: type) -> None:
    with pytest.raises(TypeError, match="inputs: expected a dense tensor, got None"):
        kind()(None)
    ragged = tf.ragged.constant([[1.0, 2.0], [3.0]])
    sparse = tf.sparse.from_dense(np.eye(3, dtype=np.float32))
    for given, shape in ((ragged, r"\(2, None\)"), (sparse, r"\(3, 3\)")):
        sentence = f"inputs: expected a dense tensor, got {type(given).__name__} of shape {shape}"
        with pytest.raises(TypeError, match=sentence):
            kind()(given)
    with pytest.raises(TypeError, match="inputs: expected float16, .* got complex64"):
        kind()(tf.complex(tf.ones((2, 3)), 1.0))


def test_an_epsilon_that_the_op_cannot_hold() -> None:
    layer = nv_norms.LayerNormalization(epsilon=1e39, dtype="float64")
    with pytest.raises(ValueError, match="epsilon: expected 0, or a number from .* got 1e\\+39"):
        layer(np.ones((2, 3)))


def test_symbolic_shapes_and_masks() -> None:
    inputs = keras.Input((None, 8))
    masked = keras.layers.Masking()(inputs)
    y = nv_norms.LayerNormalization()(masked)
    assert y.shape == (None, None, 8)
    assert keras.src.backend.get_keras_mask(y) is not None


@pytest.mark.parametrize(
    ("make", "shape", "sentence"),
    [
        (lambda: nv_norms.LayerNormalization(axis={}), (2, 3), "Expected an int or a list"),
        (lambda: nv_norms.LayerNormalization(axis=5), (2, 3), r"integers from -2 to 1 .* \[5\]"),
        (lambda: nv_norms.RMSNormalization(axis=-3), (2, 3), r"integers from -2 to 1 .* \[-3\]"),
        (lambda: nv_norms.InstanceNormalization(axis=3), (2, 4, 3), r"integers from -3 to 2"),
        (lambda: nv_norms.LayerNormalization(axis=[1, -1]), (2, 3), "expected distinct integers"),
        (lambda: nv_norms.LayerNormalization(axis=[1, 1]), (2, 3), "expected distinct integers"),
        (lambda: nv_norms.GroupNormalization(groups=6), (2, 3), "divisor of 3, .* got 6"),
        (lambda: nv_norms.GroupNormalization(groups=2), (2, 3), "divisor of 3, .* got 2"),
        (lambda: nv_norms.LayerNormalization(axis=[]), (2, 3), "expected at least one axis"),
        (lambda: nv_norms.RMSNormalization(axis=[]), (2, 3), "expected at least one axis"),
        (lambda: nv_norms.RMSNormalization(axis="a"), (2, 3), "an integer or several, got 'a'"),
        (lambda: nv_norms.InstanceNormalization(axis=[1]), (2, 4, 3), r"an integer, .* got \[1\]"),
        (lambda: nv_norms.GroupNormalization(axis=1.5), (2, 4, 3), "an integer, .* got 1.5"),
        (lambda: nv_norms.LayerNormalization(), (), "expected at least 1 axis"),
        (lambda: nv_norms.InstanceNormalization(), (2, 3, None), "should have a defined dimension"),
    ],
)
def test_bad_arguments(make: Any, shape: tuple[int, ...], sentence: str) -> None:
    with pytest.raises((TypeError, ValueError, IndexError), match=sentence):
        layer = make()
        layer.build(shape)
        layer(np.zeros(shape, np.float32))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["layer", "group", "rms"])
def test_the_tests_of_keras_itself(name: str, tmp_path: Path) -> None:
    """Keras' own test file for the layer, with ours in its place."""
    import os
    import subprocess
    import sys

    camel = {"layer": "Layer", "group": "Group", "rms": "RMS"}[name] + "Normalization"
    module = f"keras.src.layers.normalization.{name}_normalization_test"
    (tmp_path / "conftest.py").write_text(
        f"import nv_norms\nfrom keras.src import layers\nlayers.{camel} = nv_norms.{camel}\n"
    )
    (tmp_path / "test_keras.py").write_text(f"from {module} import *  # noqa: F403\n")
    root = Path(__file__).resolve().parents[2]
    process = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_keras.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root / "python"), "KERAS_BACKEND": "tensorflow"},
    )
    assert process.returncode == 0, process.stdout[-4000:]
    assert "passed" in process.stdout
