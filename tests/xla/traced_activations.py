"""An instance norm with an activation behind it in traced functions: to write, to compare."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from traced import EPSILON

import nv_norms
import oracle

SHAPE = (3, 4, 5, 8)


class Norm(tf.Module):
    """An instance norm over the middle axes, with variables."""

    def __init__(self, rng: np.random.Generator) -> None:
        signs = rng.choice([-1.0, 1.0], SHAPE[-1])
        self.gamma = tf.Variable(rng.uniform(0.5, 2.0, SHAPE[-1]) * signs, dtype=tf.float32)
        self.beta = tf.Variable(rng.normal(size=SHAPE[-1]) / 2, dtype=tf.float32)

    def in_ops(self, x: tf.Tensor) -> tf.Tensor:
        mean, variance = tf.nn.moments(x, [1, 2], keepdims=True)
        return (x - mean) * tf.math.rsqrt(variance + EPSILON) * self.gamma + self.beta

    def by_name(self, x: tf.Tensor) -> tf.Tensor:
        return nv_norms.fused_instance_norm(x, self.gamma, self.beta, epsilon=EPSILON).y

    def exact(self, x: Any, slope: float) -> np.ndarray:
        y = oracle.instance_norm(x, self.gamma.numpy(), self.beta.numpy(), -1, EPSILON).y
        return np.where(y > 0, y, slope * y)

    def exact_step(self, x: Any, da: Any, slope: float) -> list[np.ndarray]:
        """a, dx, dgamma, dbeta in float64."""
        y = self.exact(x, 1.0)
        dy = np.where(y > 0, da, slope * np.asarray(da))
        gradients = oracle.backward(dy, x, self.gamma.numpy(), (1, 2), (3,), EPSILON)
        return [self.exact(x, slope), *gradients]


WAYS = [Norm.in_ops, Norm.by_name]


def close(actual: list[tf.Tensor], exact: list[np.ndarray], tolerance: float = 2e-5) -> None:
    for a, e in zip(actual, exact, strict=True):
        np.testing.assert_allclose(a, e, tolerance, tolerance * np.abs(e).max())
