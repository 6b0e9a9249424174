"""Random graphs of norms, activations, their gradients and other ops: whatever is taken in, values
stay close, names stay, and a second pass finds nothing."""

from __future__ import annotations

import os

import numpy as np
import tensorflow as tf
from activations_graphs import (
    KINDS,
    SHAPE,
    C,
    activation,
    activation_grad,
    activations,
    placeholder,
    rewritten,
    run,
)

from fused_graphs import norm, norm_grad, trace

GRAPHS = int(os.environ.get("NV_NORMS_RANDOM_GRAPHS", "24"))


class _Maker:
    """Adds random ops to a graph: mostly steps of a norm and an activation, with one thing wrong
    now and then."""

    def __init__(self, rng: np.random.Generator, steps: int) -> None:
        self._rng = rng
        self._steps = steps
        self.fetches: list[str] = []

    def __call__(self) -> None:
        self._parameters = [placeholder(name, [C], tf.float64) for name in ("gamma", "beta")]
        self._tensors = [placeholder(name, SHAPE, tf.float64) for name in ("x", "dy")]
        for _ in range(self._steps):
            with tf.control_dependencies(self._controls(0.05)):
                self._step()
        for tensor in self._tensors[2:]:
            if self._rng.random() < (0.03 if tensor.consumers() else 0.8):
                fused = tensor.op.type.startswith("Fused") and self._rng.random() < 0.9
                self.fetches.append((tf.identity(tensor) if fused else tensor).op.name)
        self.fetches = list(dict.fromkeys(self.fetches)) or [tf.tanh(self._tensors[-1]).op.name]

    def _pick(self, among: list | None = None):
        among = self._tensors if among is None else among
        return among[self._rng.integers(len(among))]

    def _sometimes(self, tensor, chance: float = 0.06):
        """The tensor, or another one."""
        return self._pick() if self._rng.random() < chance else tensor

    def _controls(self, chance: float) -> list:
        return [self._pick()] if self._rng.random() < chance else []

    def _slope(self, like: float) -> float:
        return like if self._rng.random() < 0.95 else 0.5

    def _step(self) -> None:
        rng = self._rng
        gamma, beta = (p if rng.random() < 0.8 else None for p in self._parameters)
        x, kind = self._pick(), self._pick(list(KINDS))
        y, *statistics = norm(kind, x, gamma, beta)
        slope = self._pick([0.0, 0.25])
        if rng.random() < 0.2:
            y = tf.identity(y)
        with tf.control_dependencies(self._controls(0.05)):
            a = activation(self._sometimes(y), slope)
        if rng.random() < 0.1:
            self._tensors.append(y)
        self._tensors.append(a)
        if rng.random() < 0.2:
            self._tensors.append(a + tf.cast(tf.shape(y)[0], tf.float64))
        da = self._pick()
        for _ in range(int(rng.choice([0, 1, 1, 2]))):
            with tf.control_dependencies(self._controls(0.05)):
                dy = activation_grad(da, self._sometimes(y), self._sometimes(a), self._slope(slope))
            if rng.random() < 0.07:
                dy = dy + self._pick()
            dx, dgamma, _ = norm_grad(
                kind,
                self._sometimes(dy),
                self._sometimes(x, 0.03),
                gamma if rng.random() < 0.97 else None,
                statistics,
                param_type=tf.float64,
            )
            self._tensors.append(dx)
            if rng.random() < 0.3:
                self.fetches.append(tf.identity(dgamma).op.name)
            if rng.random() < 0.05:
                self._tensors.append(dy)
        if rng.random() < 0.1:
            self.fetches.append(tf.identity(self._pick(statistics)).op.name)
        if rng.random() < 0.3:
            self._tensors.append(tf.tanh(self._pick()))


def _compare(number: int, rng: np.random.Generator) -> tuple[int, int]:
    """How many activations there were, and are."""
    maker = _Maker(rng, steps=int(rng.integers(1, 7)))
    graph = trace(maker)
    after = rewritten(graph, maker.fetches)
    feeds = {
        "x": rng.normal(size=SHAPE),
        "dy": rng.normal(size=SHAPE),
        "gamma": rng.uniform(0.5, 1.5, C) * rng.choice([-1, 1], C),
        "beta": rng.normal(size=C),
    }
    old, new = (run(each, feeds, maker.fetches) for each in (graph, after))
    for name, was, now in zip(maker.fetches, old, new, strict=True):
        assert was.dtype == now.dtype and was.shape == now.shape, (number, name)
        size = max(1.0, np.abs(was).max())
        assert np.abs(was - now).max() < 1e-6 * size, (number, name)
    return len(activations(graph)), len(activations(after))


def test_random_graphs(rng: np.random.Generator) -> None:
    counts = [_compare(number, rng) for number in range(GRAPHS)]
    before, after = (sum(each) for each in zip(*counts, strict=True))
    assert 0.1 * before < after < 0.8 * before
