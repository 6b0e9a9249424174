"""XLA's auto-clustering: Grappler fuses first, then XLA compiles clusters with the fused ops."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from processes import result

STEP = """
import json
import numpy as np
import tensorflow as tf
import nv_norms_rewriter

tf.config.experimental.enable_tensor_float_32_execution(False)
tf.config.optimizer.set_jit(True)
random = np.random.default_rng(71)
x, w = (random.normal(1.0, 2.0, shape).astype(np.float32) for shape in ((16, 8), (8, 8)))

@tf.function
def step(x, w):
    with tf.GradientTape() as tape:
        tape.watch(w)
        h = tf.matmul(x, w)
        mean, variance = tf.nn.moments(h, [-1], keepdims=True)
        y = tf.tanh((h - mean) * tf.math.rsqrt(variance + 1e-3) * tf.range(1.0, 9.0))
        loss = tf.reduce_sum(y * x)
    return loss, tape.gradient(loss, w)

def expected(w):
    h = x.astype(np.float64) @ w
    centred = h - h.mean(-1, keepdims=True)
    xhat = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-3)
    return np.sum(np.tanh(xhat * np.arange(1.0, 9.0)) * x)

for _ in range(4):
    loss, gradient = step(tf.constant(x), tf.constant(w))
slope = np.zeros(w.shape)
for at in np.ndindex(*w.shape):
    nudge = np.zeros(w.shape)
    nudge[at] = 1e-6
    slope[at] = (expected(w + nudge) - expected(w - nudge)) / 2e-6
fused = [r.direction for r in nv_norms_rewriter.report().fused]
print(json.dumps([
    abs(float(loss) - expected(w)), float(np.max(np.abs(gradient - slope)) / np.max(np.abs(slope))),
    sorted(fused),
]))
"""


@pytest.mark.parametrize("flags", ["--tf_xla_cpu_global_jit", "--tf_xla_auto_jit=2"])
def test_clusters_hold_the_fused_ops(tmp_path: Path, flags: str) -> None:
    (loss, gradient, fused), _ = result(
        STEP,
        TF_XLA_FLAGS=f"{flags} --tf_xla_cpu_global_jit --tf_xla_min_cluster_size=2",
        XLA_FLAGS=f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text",
    )
    assert fused == ["backward", "forward"]
    assert loss < 1e-3 and gradient < 1e-4
    modules = [path.read_text() for path in tmp_path.glob("*after_optimizations.txt")]
    held = [set(re.findall(r'custom_call_target="(nv_norms_\w+)"', m)) for m in modules]
    assert set().union(*held) == {"nv_norms_forward", "nv_norms_backward"}
    assert any("nv_norms_forward" in m and "tanh" in m for m in modules)  # with its neighbours


def test_without_clustering_xla_compiles_nothing(tmp_path: Path) -> None:
    (_, _, fused), _ = result(
        STEP.replace("tf.config.optimizer.set_jit(True)\n", ""),
        XLA_FLAGS=f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text",
    )
    assert fused == ["backward", "forward"]
    assert not list(tmp_path.glob("*after_optimizations.txt"))
