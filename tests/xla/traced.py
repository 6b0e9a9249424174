"""Layer norms in traced functions: to write, to count, to compare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from processes import result

import nv_norms_rewriter
import oracle
from nv_norms_rewriter import _saving

ROOT = Path(__file__).resolve().parents[2]

__all__ = [
    "EPSILON",
    "HERE",
    "ROOT",
    "SHAPE",
    "Layer",
    "close",
    "found",
    "ops_in",
    "result",
    "running",
]

# Where TensorFlow puts what nobody has placed.
HERE = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"

EPSILON = 1e-3
SHAPE = (3, 5, 17)


class Layer(tf.Module):
    """A layer norm in single ops over the last axis, with variables."""

    def __init__(self, rng: np.random.Generator, size: int) -> None:
        self.gamma = tf.Variable(rng.uniform(0.5, 2.0, size), dtype=tf.float32)
        self.beta = tf.Variable(rng.normal(size=size), dtype=tf.float32)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        xhat = (x - mean) * tf.math.rsqrt(variance + EPSILON)
        return xhat * self.gamma + self.beta

    def exact(self, x: Any) -> np.ndarray:
        """y in float64 from the formula."""
        return oracle.layer_norm(x, self.gamma.numpy(), self.beta.numpy(), -1, EPSILON).y

    def exact_gradients(self, x: Any, dy: Any) -> list[np.ndarray]:
        """dx, dgamma, dbeta in float64 from the formula."""
        last = (np.ndim(x) - 1,)
        return list(oracle.backward(dy, x, self.gamma.numpy(), last, last, EPSILON))


def found(direction: str = "forward", where: str = "xla") -> int:
    """How many fusions the report has."""
    return sum(
        r.fused and r.direction == direction and r.where == where
        for r in nv_norms_rewriter.report()
    )


def ops_in(graph: Any) -> set[str]:
    """The fused ops in a graph and in the functions that it calls."""
    with _saving.raw():
        graph_def = graph.as_graph_def()
    nodes = [*graph_def.node, *(n for f in graph_def.library.function for n in f.node_def)]
    return {node.op for node in nodes if node.op.startswith("Fused") and "Norm" in node.op}


def running(graph: Any) -> list[tf.Operation]:
    """What the outputs need."""
    ops = {tensor.op for tensor in graph.outputs} | set(graph.control_outputs)
    waiting = list(ops)
    while waiting:
        op = waiting.pop()
        new = {tensor.op for tensor in op.inputs} | set(op.control_inputs)
        waiting += new - ops
        ops |= new
    return list(ops)


def close(actual: Any, exact: Any) -> None:
    exact = np.asarray(exact)
    size = np.abs(exact).max() if exact.size else 1.0
    np.testing.assert_allclose(np.asarray(actual), exact, 1e-5, 1e-5 * size)
