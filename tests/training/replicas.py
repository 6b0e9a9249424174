"""Two replicas, on parts of one CPU or GPU or on two GPUs: in a process of their own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from training_norms import GROUP, INSTANCE, LAYER, RMS, Norm, fit, fit_in_float64
from training_steps import assert_as_close_as_stock, assert_counts, normal

import nv_norms_rewriter

sys.path.append(str(Path(__file__).parents[2] / "examples"))
from train_on_gpus import CompiledReplicas


@pytest.fixture(scope="module")
def strategy() -> tf.distribute.Strategy:
    """Logical devices must be made before TensorFlow starts."""
    kind = os.environ["REPLICAS_ON"]
    if kind == "GPUS":
        return tf.distribute.MirroredStrategy(["GPU:0", "GPU:1"])
    options = {"memory_limit": 1024} if kind == "GPU" else {}
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices(kind)[0],
        [tf.config.LogicalDeviceConfiguration(**options) for _ in range(2)],
    )
    # NCCL wants a GPU for each replica.
    return tf.distribute.MirroredStrategy(
        [f"{kind}:0", f"{kind}:1"], cross_device_ops=tf.distribute.HierarchicalCopyAllReduce()
    )


@pytest.mark.parametrize(
    ("norm", "policy"),
    [
        (LAYER, "mixed_float16"),
        (GROUP, "float32"),
        # Replicas are the same to each kind.
        *(pytest.param(norm, "float32", marks=pytest.mark.slow) for norm in (LAYER, RMS, INSTANCE)),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_fit_under_a_mirrored_strategy(rng, strategy, norm: Norm, policy: str) -> None:
    """Both replicas are in one graph, each on a device of its own, with variables of its own.

    XLA compiles no such graph, fused or not: it refuses the other device's variables.
    """
    x, target = normal(rng, 8, *norm.shape[1:]), normal(rng, 8, *norm.shape[1:])
    values = norm.parameters(rng)
    with nv_norms_rewriter.disabled(), strategy.scope():
        stock = fit(norm, values, x, target, policy=policy)
    nv_norms_rewriter.clear_report()
    with strategy.scope():
        fused = fit(norm, values, x, target, policy=policy)
    dtype = np.float32 if policy == "float32" else np.float16
    assert_as_close_as_stock(stock, fused, fit_in_float64(norm, values, x, target), dtype=dtype)
    _assert_fused_on_both(norm)


@pytest.mark.parametrize(
    ("norm", "policy"),
    [
        (LAYER, "mixed_float16"),
        *(pytest.param(norm, "float32", marks=pytest.mark.slow) for norm in (RMS, INSTANCE)),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_fit_where_xla_compiles_each_replica(rng, strategy, norm: Norm, policy: str) -> None:
    """Forward and backward of a replica are a function of their own, which XLA does compile."""
    x, target = normal(rng, 8, *norm.shape[1:]), normal(rng, 8, *norm.shape[1:])
    values = norm.parameters(rng)
    with nv_norms_rewriter.disabled(), strategy.scope():
        stock = fit(norm, values, x, target, policy=policy, kind=CompiledReplicas)
    nv_norms_rewriter.clear_report()
    nv_norms_rewriter.configure(xla="all")
    with strategy.scope():
        fused = fit(norm, values, x, target, policy=policy, kind=CompiledReplicas)
    nv_norms_rewriter.configure(xla=None)
    dtype = np.float32 if policy == "float32" else np.float16
    assert_as_close_as_stock(stock, fused, fit_in_float64(norm, values, x, target), dtype=dtype)
    _assert_fused_on_both(norm)
    assert {record.where for record in nv_norms_rewriter.report()} == {"xla"}


def _assert_fused_on_both(norm: Norm) -> None:
    report = nv_norms_rewriter.report()
    assert_counts(report, {norm.kind: 2}, {norm.kind: 2})
    assert len({record.device for record in report}) == 2
