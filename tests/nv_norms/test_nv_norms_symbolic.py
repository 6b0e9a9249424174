"""nv_norms' functions on Keras' symbolic tensors: models that run, are saved, loaded and copied."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from nv_norms_cases import CASES, Case, assert_close

import nv_norms


def _saved(model: keras.Model, folder: Path) -> keras.Model:
    model.save(folder / "model.keras")
    return keras.models.load_model(folder / "model.keras")


COPIES: dict[str, Callable[[keras.Model, Path], keras.Model]] = {
    "saved": _saved,
    "pickled": lambda model, _: pickle.loads(pickle.dumps(model)),
    "cloned": lambda model, _: keras.models.clone_model(model),
    "json": lambda model, _: keras.models.model_from_json(model.to_json()),
}


def test_tensors_of_keras(rng: np.random.Generator) -> None:
    case = Case("layer", (4, 3, 8))
    x, scale, offset, _ = case.random(rng)
    inputs = keras.Input(case.shape[1:])
    y, mean, inv_std = nv_norms.fused_layer_norm(inputs, scale, offset)
    assert y.shape == (None, 3, 8) and mean.shape == inv_std.shape == (None,)
    model = keras.Model(inputs, y)
    expected = case.forward(x, scale, offset).y
    assert_close(model(x), expected, "float32", "called")
    assert_close(model.predict(x, verbose=0), expected, "float32", "predicted")


@pytest.mark.parametrize("copied", COPIES)
@pytest.mark.parametrize("case", [CASES[2], CASES[6], CASES[8], CASES[14]], ids=str)
def test_copies_of_a_model(
    case: Case, copied: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    x, scale, offset, _ = case.random(rng)
    inputs = keras.Input(case.shape[1:])
    y, _, inv_std = case.call(inputs, scale, offset, 0.1)
    model = keras.Model(inputs, [y, inv_std])
    again = COPIES[copied](model, tmp_path)
    assert again.operations[-1].name == model.operations[-1].name
    expected = case.forward(x, scale, offset, 0.1)
    for got, want in zip(again.predict(x, verbose=0), (expected.y, expected.rstd), strict=True):
        assert_close(got, want, "float32", "an output")


CONSTANTS: dict[str, Callable[[np.ndarray], Any]] = {
    "None": lambda scale: None,
    "list": lambda scale: scale.tolist(),
    "float64": lambda scale: scale.astype(np.float64),
    "bfloat16": lambda scale: scale.astype(ml_dtypes.bfloat16),
    "tensor": tf.constant,
    "tensor of bfloat16": lambda scale: tf.constant(scale, tf.bfloat16),
}


@pytest.mark.parametrize("given", CONSTANTS)
def test_constants_come_back_as_they_were(
    given: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    scale = CONSTANTS[given](rng.normal(1.0, 0.3, 8).astype(np.float32))
    x = rng.normal(size=(4, 3, 8)).astype(np.float32)
    inputs = keras.Input(x.shape[1:])
    axis, epsilon = np.array([-1]), np.float32(1e-4)
    model = keras.Model(inputs, nv_norms.fused_layer_norm(inputs, scale, None, axis, epsilon).y)
    expected = nv_norms.fused_layer_norm(x, scale, None, axis, epsilon).y
    np.testing.assert_array_equal(model(x), expected)
    np.testing.assert_array_equal(_saved(model, tmp_path)(x), expected)


@pytest.mark.parametrize("symbolic", ["scale", "x and scale"])
def test_a_symbolic_scale(symbolic: str, tmp_path: Path, rng: np.random.Generator) -> None:
    case = Case("layer", (4, 8))
    x, scale, offset, _ = case.random(rng)
    given = keras.Input(batch_shape=scale.shape)
    inputs = [keras.Input(x.shape[1:]), given] if "x" in symbolic else [given]
    values = [x, scale][-len(inputs) :]
    y = nv_norms.fused_layer_norm(x=inputs[0] if "x" in symbolic else x, scale=given, offset=offset)
    model = _saved(keras.Model(inputs, y.y), tmp_path)
    assert_close(model(values), case.forward(x, scale, offset).y, "float32", "y")


def test_a_trained_model_keeps_its_weights(tmp_path: Path, rng: np.random.Generator) -> None:
    keras.utils.set_random_seed(1)
    inputs = keras.Input((4, 8))
    y = nv_norms.fused_rms_norm(keras.layers.Dense(8)(inputs)).y
    model = keras.Model(inputs, keras.layers.Dense(2)(nv_norms.fused_layer_norm(y).y))
    model.compile(keras.optimizers.SGD(0.05), "mse")
    x = rng.normal(size=(16, 4, 8)).astype(np.float32)
    losses = model.fit(x, x[..., :2], epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    again = _saved(model, tmp_path)
    np.testing.assert_array_equal(again.predict(x, verbose=0), model.predict(x, verbose=0))


@pytest.mark.parametrize("variable", [keras.Variable, tf.Variable])
def test_a_model_with_a_foreign_variable_runs_but_is_not_saved(
    variable: Any, tmp_path: Path, rng: np.random.Generator
) -> None:
    case = Case("layer", (4, 8))
    x, scale, offset, _ = case.random(rng)
    inputs = keras.Input((8,))
    model = keras.Model(inputs, nv_norms.fused_layer_norm(inputs, variable(scale), offset).y)
    assert_close(model(x), case.forward(x, scale, offset).y, "float32", "y")
    with pytest.raises(TypeError, match=r"scale: expected numbers, an array .* of shape \(8,\)"):
        model.save(tmp_path / "model.keras")


def test_errors_are_those_of_the_functions() -> None:
    inputs = keras.Input((3, 8))
    with pytest.raises(ValueError, match="scale: expected shape"):
        nv_norms.fused_layer_norm(inputs, np.ones(5, np.float32))
    with pytest.raises(TypeError, match="missing a required argument: 'x'"):
        nv_norms.fused_layer_norm(scale=inputs)
    with pytest.raises(ValueError, match="function: expected one of .*, got 'fused_batch_norm'"):
        keras.saving.deserialize_keras_object(
            {
                "module": "nv_norms._operation",
                "class_name": "Normalization",
                "registered_name": "nv_norms>Normalization",
                "config": {"name": "n", "function": "fused_batch_norm", "constants": {}},
            }
        )
