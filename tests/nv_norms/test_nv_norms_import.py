"""What importing nv_norms does to a process, and what it does not."""

from __future__ import annotations

from pathlib import Path

import processes
import pytest

COUNT = """
import sys
def layer_norm(x):
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + 1e-3)
def fused():
    import nv_norms_rewriter
    nv_norms_rewriter.clear_report()
    tf.function(layer_norm)(tf.random.stateless_normal((4, 64), [1, 2]))
    return len(nv_norms_rewriter.report().fused)
"""


def _run(code: str) -> str:
    process = processes.run(COUNT + code)
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_the_rewriter_stays_off_and_keras_is_not_needed() -> None:
    code = """
import nv_norms, tensorflow as tf
print("nv_norms_rewriter" in sys.modules, "keras" in vars(nv_norms))
print(nv_norms.fused_layer_norm(tf.ones((2, 3))).y.shape)
from nv_norms._shared import _library
print(_library.core().device_type_is_free("CPU"))
"""
    assert _run(code).splitlines() == ["False False", "(2, 3)", "True"]


@pytest.mark.parametrize("first", ["nv_norms", "nv_norms_rewriter"])
def test_both_packages_share_the_ops_and_report_a_gradient_once(first: str) -> None:
    """TensorFlow differentiates a function more than once before it knows the outputs' number."""
    code = f"""
import {first}, nv_norms, nv_norms_rewriter
import tensorflow as tf
x = tf.random.stateless_normal((4, 8), [1, 2])
function = tf.function(layer_norm)
with tf.GradientTape(persistent=True) as tape:
    tape.watch(x)
    y = function(x)
print([tape.gradient(y, x, dy).shape for dy in (x, x)])
print([(record.direction, record.fused) for record in nv_norms_rewriter.report()])
with tf.GradientTape() as tape:
    tape.watch(x)
    y = nv_norms.fused_layer_norm(x).y
print(tape.gradient(y, x).shape, nv_norms_rewriter.is_enabled(), fused())
"""
    lines = _run(code).splitlines()
    assert lines[1:3] == ["[('forward', True), ('backward', True)]", "(4, 8) True 1"]


def test_the_layers_are_found_by_name_and_another_backend_of_keras_is_named() -> None:
    code = """
import keras
keras.backend.backend = lambda: "jax"
import nv_norms
print(sorted(name for name in dir(nv_norms) if name.endswith("Normalization")))
try:
    nv_norms.BatchNormalization
except AttributeError as error:
    print(error)
try:
    nv_norms.LayerNormalization()
except ImportError as error:
    print(error)
"""
    names, missing, backend = _run(code).splitlines()
    assert names == (
        "['GroupNormalization', 'InstanceNormalization', 'LayerNormalization', 'RMSNormalization']"
    )
    assert missing == "module 'nv_norms' has no attribute 'BatchNormalization'"
    assert "expected Keras' backend to be 'tensorflow', got 'jax'" in backend


def test_a_saved_model_is_loaded_where_nv_norms_is_imported(tmp_path: Path) -> None:
    path = str(tmp_path / "model.keras")
    save = f"""
import keras, nv_norms
inputs = keras.Input((4, 8))
y = nv_norms.InstanceNormalization()(nv_norms.LayerNormalization()(inputs))
keras.Model(inputs, nv_norms.fused_rms_norm(y).y).save({path!r})
"""
    load = f"""
import nv_norms, keras
print(*[type(part).__name__ for part in keras.models.load_model({path!r}).operations])
"""
    _run(save)
    kinds = _run(load).split()
    assert kinds == ["InputLayer", "LayerNormalization", "InstanceNormalization", "Normalization"]
