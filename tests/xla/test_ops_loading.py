"""XLA's kernels come with the core library, whenever that is loaded."""

from __future__ import annotations

from processes import result

COMPILED = """
def compiled():
    from nv_norms_rewriter import _library

    @tf.function(jit_compile=True, autograph=False)
    def run(x):
        y = _library.ops().fused_layer_norm(x=x, scale=[], offset=[], out_type=tf.float32)[0]
        return tf.reduce_sum(y * y)

    x = tf.constant([[1.0, 2.0, 4.0]])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = run(x)
    deviation = np.array([1.0, 2.0, 4.0]) - 7 / 3
    expected = np.sum(deviation**2) / (np.mean(deviation**2) + np.float32(1e-3))
    return bool(abs(y - expected) < 1e-5) and tape.gradient(y, x).shape == (1, 3)
"""
START = """
import json
import numpy as np
import tensorflow as tf
"""


def test_before_xla_is_used() -> None:
    code = START + COMPILED + "import nv_norms_rewriter\nprint(json.dumps(compiled()))"
    assert result(code)[0] is True


def test_after_xla_was_used() -> None:
    """TensorFlow collects XLA's kernels once, when it first compiles."""
    code = (
        START
        + COMPILED
        + (
            "tf.function(lambda x: x + 1.0, jit_compile=True)(tf.ones(3))\n"
            "import nv_norms_rewriter\n"
            "print(json.dumps(compiled()))"
        )
    )
    assert result(code)[0] is True


def test_a_second_load_changes_nothing() -> None:
    code = (
        START
        + COMPILED
        + (
            "import nv_norms_rewriter\n"
            "from nv_norms_rewriter import _library\n"
            "first = compiled()\n"
            "tf.load_op_library(str(_library.LIBRARIES / _library.CORE))\n"
            "print(json.dumps([first, compiled()]))"
        )
    )
    (values, errors) = result(code)
    assert values == [True, True]
    assert "does not take the handler" not in errors
