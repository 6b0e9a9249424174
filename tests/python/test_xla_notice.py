"""Models that XLA compiles are out of reach: said once, by name, with what to do."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from processes import result

import nv_norms_rewriter
from nv_norms_rewriter import _library

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


def test_each_model_is_named_once_with_the_remedy() -> None:
    got, stderr = result(
        MODEL
        + """
one = model("compiled_one", True)
one.fit(x, x, verbose=0)
one.predict(x, verbose=0)
one.evaluate(x, x, verbose=0)
model("compiled_two", True).predict(x, verbose=0)
model("optimized", False).predict(x, verbose=0)
nothing = keras.Sequential([keras.layers.Dense(3)], name="no_norms")
nothing.compile("sgd", "mse", jit_compile=True)
nothing.fit(x, x[..., :3], verbose=0)
with nv_norms_rewriter.disabled():
    model("not_of_interest", True).predict(x, verbose=0)
print(json.dumps(list(nv_norms_rewriter.report().notices)))
"""
    )
    assert [notice.split("'")[1] for notice in got] == ["compiled_one", "compiled_two"]
    for notice in got:
        assert "is compiled by XLA" in notice and "(2 found)" in notice
        assert "model.compile(..., jit_compile=False)" in notice
        assert stderr.count(notice) == 1
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


def test_notice_never_breaks_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(_library.Core, "rewrite", broken)
    notices = nv_norms_rewriter.report().notices
    x = tf.ones((4, 8))
    y = tf.function(lambda x: x * tf.math.rsqrt(x + 1.0), jit_compile=True)(x)
    np.testing.assert_allclose(y, np.sqrt(0.5) * np.ones((4, 8)), 1e-6)
    assert nv_norms_rewriter.report().notices == notices
