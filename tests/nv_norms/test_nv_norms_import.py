"""What importing nv_norms does to a process, and what it does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

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
    process = subprocess.run(
        [sys.executable, "-c", COUNT + code],
        capture_output=True,
        text=True,
        cwd=ROOT / "python",
        timeout=300,
    )
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
def test_both_packages_share_the_ops(first: str) -> None:
    second = {"nv_norms": "nv_norms_rewriter", "nv_norms_rewriter": "nv_norms"}[first]
    code = f"""
import {first}
import {second}
import tensorflow as tf
x = tf.Variable(tf.random.stateless_normal((4, 8), [1, 2]))
with tf.GradientTape() as tape:
    y = nv_norms.fused_layer_norm(x).y
print(tape.gradient(y, x).shape, nv_norms_rewriter.is_enabled(), fused())
"""
    assert _run(code).split("\n")[0] == "(4, 8) True 1"


@pytest.mark.parametrize("first", ["nv_norms", "nv_norms_rewriter"])
def test_a_gradient_is_reported_once_whichever_package_came_first(first: str) -> None:
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
"""
    assert _run(code).splitlines()[1] == "[('forward', True), ('backward', True)]"


def test_the_layers_are_found_by_name() -> None:
    code = """
import nv_norms
print(sorted(name for name in dir(nv_norms) if name.endswith("Normalization")))
try:
    nv_norms.BatchNormalization
except AttributeError as error:
    print(error)
"""
    assert _run(code).splitlines() == [
        "['GroupNormalization', 'InstanceNormalization', 'LayerNormalization', 'RMSNormalization']",
        "module 'nv_norms' has no attribute 'BatchNormalization'",
    ]


def test_another_backend_of_keras_is_named() -> None:
    code = """
import keras, nv_norms
keras.backend.backend = lambda: "jax"
try:
    nv_norms.LayerNormalization()
except ImportError as error:
    print(error)
"""
    assert "expected Keras' backend to be 'tensorflow', got 'jax'" in _run(code)
