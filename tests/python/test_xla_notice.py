"""Models that XLA compiles are out of reach: said once, by name, with what to do."""

from __future__ import annotations

from processes import result

MODEL = """
import json
import numpy as np
import keras
import tensorflow as tf
import nv_norms_rewriter

def model(name, jit_compile):
    x = keras.Input((6, 8))
    y = keras.layers.LayerNormalization()(keras.layers.Dense(8)(x))
    y = keras.layers.LayerNormalization()(keras.layers.Dense(8)(y))
    built = keras.Model(x, y, name=name)
    built.compile("sgd", "mse", jit_compile=jit_compile)
    return built

x = np.random.default_rng(0).normal(size=(4, 6, 8)).astype(np.float32)
"""
SENTENCE = "the Keras model 'compiled_one' is compiled by XLA"


def test_keras_model_is_named_once_with_the_remedy() -> None:
    got, stderr = result(
        MODEL
        + """
one = model("compiled_one", True)
one.fit(x, x, verbose=0)
one.predict(x, verbose=0)
one.evaluate(x, x, verbose=0)
print(json.dumps(list(nv_norms_rewriter.report().notices)))
"""
    )
    assert stderr.count(SENTENCE) == 1
    (notice,) = got
    assert notice.startswith(SENTENCE)
    assert "(2 found)" in notice and "model.compile(..., jit_compile=False)" in notice


def test_each_model_is_named_and_others_are_not() -> None:
    got, stderr = result(
        MODEL
        + """
model("compiled_one", True).predict(x, verbose=0)
model("compiled_two", True).predict(x, verbose=0)
model("optimized", False).predict(x, verbose=0)
nothing = keras.Sequential([keras.layers.Dense(3)], name="no_norms")
nothing.compile("adam", "mse", jit_compile=True)
nothing.fit(x, x[..., :3], verbose=0)
with nv_norms_rewriter.disabled():
    model("not_of_interest", True).predict(x, verbose=0)
print(json.dumps(list(nv_norms_rewriter.report().notices)))
"""
    )
    assert [notice.split("'")[1] for notice in got] == ["compiled_one", "compiled_two"]
    assert "no_norms" not in stderr and "not_of_interest" not in stderr


def test_function_of_the_users_is_named() -> None:
    got, _ = result(
        MODEL
        + """
inner = model("inner_model", False)

@tf.function(jit_compile=True)
def my_step(x):
    return tf.cond(tf.reduce_sum(x) > 0, lambda: inner(x), lambda: inner(-x))

my_step(x)
print(json.dumps(list(nv_norms_rewriter.report().notices)))
"""
    )
    (notice,) = got
    assert notice.startswith("the function 'my_step' is compiled by XLA")
    assert "tf.function(..., jit_compile=False)" in notice


def test_notice_never_breaks_a_trace() -> None:
    got, _ = result(
        MODEL
        + """
from nv_norms_rewriter import _library
def broken(*arguments):
    raise RuntimeError("broken")
_library.Core.rewrite = broken
model("compiled_one", True).predict(x, verbose=0)
print(json.dumps(list(nv_norms_rewriter.report().notices)))
"""
    )
    assert got == []
