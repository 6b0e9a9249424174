"""Random graphs of norms, Casts, views and other ops: whatever is taken in, values stay
close, names stay with their types, and a second pass finds nothing."""

from __future__ import annotations

import os

import numpy as np
import pytest
import tensorflow as tf
from casts_graphs import KINDS, SHAPE, casts, placeholder, rewritten, run

from fused_graphs import norm, trace
from fused_graphs import norm_grad as gradient

C = SHAPE[-1]
HALF = tf.float16
GRAPHS = int(os.environ.get("NV_NORMS_RANDOM_GRAPHS", "12"))


class _Maker:
    """Adds random ops to a graph. Values stay small, so that their errors do."""

    def __init__(self, rng: np.random.Generator, size: int) -> None:
        self._rng = rng
        self._size = size
        self.fetches: list[str] = []

    def __call__(self) -> None:
        rng = self._rng
        self._parameters = [placeholder(name, [C]) for name in ("gamma", "beta")]
        self._tensors = [placeholder("x"), placeholder("dy")]
        self._norms: list[tuple] = []
        for _ in range(self._size):
            with tf.control_dependencies(self._controls()):
                made = self._make(rng.choice(["cast", "cast", "view", "other", "norm", "gradient"]))
            self._tensors += [tensor for tensor in made if tensor.shape.rank == len(SHAPE)]
        ends = [t for t in self._tensors[2:] if not t.consumers() or rng.random() < 0.1]
        for tensor in ends:
            name = tensor.op.name
            if tensor.op.type.startswith("Fused") or rng.random() < 0.5:
                name = tf.identity(tensor).op.name
            self.fetches.append(name)
        self.fetches = list(dict.fromkeys(self.fetches))

    def _pick(self, among: list | None = None):
        among = among or self._tensors
        return among[self._rng.integers(len(among))]

    def _controls(self) -> list:
        return [self._pick()] if self._rng.random() < 0.05 else []

    def _make(self, what: str) -> list:
        rng = self._rng
        x = self._pick()
        if what == "cast":
            return [tf.cast(x, HALF if x.dtype == tf.float32 else tf.float32)]
        if what == "view":
            flat = tf.reshape(x, [-1, C]) if rng.random() < 0.5 else tf.identity(x)
            return [tf.reshape(flat, tf.shape(x))]
        if what == "other":
            return [tf.tanh(x)]
        gamma, beta = self._parameters
        if what == "norm":
            kind = self._pick(list(KINDS))
            out = x.dtype if rng.random() < 0.7 else self._pick([HALF, tf.float32])
            y, *statistics = norm(kind, x, gamma, beta, out)
            self._norms.append((kind, x, statistics))
            return [y]
        if not self._norms:
            return []
        kind, x, statistics = self._pick(self._norms)
        dx_type = x.dtype if rng.random() < 0.7 else self._pick([HALF, tf.float32])
        dx, dgamma, _ = gradient(kind, self._pick(), x, gamma, statistics, dx_type)
        if rng.random() < 0.3:
            self.fetches.append(tf.identity(dgamma).op.name)
        return [dx]


@pytest.mark.parametrize("device", ["CPU", "GPU"])
@pytest.mark.parametrize("number", range(GRAPHS))
def test_random_graph(number: int, device: str, rng: np.random.Generator) -> None:
    maker = _Maker(rng, size=int(rng.integers(4, 24)))
    graph = trace(maker)
    after = rewritten(graph, maker.fetches, device)
    assert len(casts(after)) <= len(casts(graph))
    feeds = {
        "x": rng.normal(size=SHAPE).astype(np.float32),
        "dy": rng.normal(size=SHAPE).astype(np.float32),
        "gamma": rng.uniform(0.5, 1.5, C).astype(np.float32),
        "beta": rng.normal(size=C).astype(np.float32),
    }
    old, new = (run(each, feeds, maker.fetches) for each in (graph, after))
    for name, was, now in zip(maker.fetches, old, new, strict=True):
        assert was.dtype == now.dtype and was.shape == now.shape, name
        size = max(1.0, np.abs(was.astype(np.float64)).max())
        assert np.abs(was.astype(np.float64) - now).max() < 0.05 * size, name
