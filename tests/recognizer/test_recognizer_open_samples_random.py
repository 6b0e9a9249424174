"""Random spellings of norms with a scale of each sample, in batches of unknown size: whatever is
made of them gives what stock TensorFlow gives, whichever tensor has one sample."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from recognizer_graphs import fused_nodes, placeholder, run, trace

from nv_norms_rewriter import rewrite

N, SPACE, CHANNELS, EPSILON = 3, (4, 3), 8, 1e-3
NAMES = ["y", "dx", "dstyle", "doffset"]
# Samples of x, the style, the offset and what is beside the norm.
SAMPLES = [
    (N, N, N, N), (1, N, N, N), (N, 1, N, N), (N, N, 1, 1), (1, N, 1, 1), (N, 1, 1, 1),
    (1, 1, 1, 1), (1, 1, N, 1), (1, 1, 1, N),
]  # fmt: skip


def _two_terms(x: tf.Tensor, mean: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    return x * factor - mean * factor


FORMS = {
    "rsqrt": lambda x, m, v, s: (x - m) * tf.math.rsqrt(v + EPSILON) * s,
    "batch_normalization": lambda x, m, v, s: tf.nn.batch_normalization(x, m, v, None, s, EPSILON),
    "scale with rstd": lambda x, m, v, s: (x - m) * (s * tf.math.rsqrt(v + EPSILON)),
    "scale first": lambda x, m, v, s: s * (x - m) / tf.sqrt(v + EPSILON),
    "two terms": lambda x, m, v, s: _two_terms(x, m, s * tf.math.rsqrt(v + EPSILON)),
}
PARAMETERS = {
    "split": lambda style, offset: tf.split(style, 2, -1),
    "one and more": lambda style, offset: (1 + style[:, :CHANNELS], offset),
    "as they are": lambda style, offset: (style[:, :CHANNELS], offset),
    "scaled": lambda style, offset: (style[:, CHANNELS:] * 2.0, offset - 1.0),
}
BEHIND = {
    "nothing": lambda y, x, other: y,
    "relu": lambda y, x, other: tf.nn.relu(y),
    "x again": lambda y, x, other: y + x,
    "a term": lambda y, x, other: y + other,
    "a factor": lambda y, x, other: y * other,
}


class Spelling(NamedTuple):
    form: str
    parameters: str
    behind: str
    groups: int
    known: tuple[bool, bool, bool]  # the batches of x, the style and the offset

    @classmethod
    def draw(cls, rng: np.random.Generator) -> Spelling:
        names = (str(rng.choice(list(table))) for table in (FORMS, PARAMETERS, BEHIND))
        known = tuple(bool(each) for each in rng.random(3) < 0.2)
        return cls(*names, int(rng.choice([CHANNELS, 2])), known)

    def shapes(self, samples: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        image = (*SPACE, CHANNELS)
        rest = {"x": image, "style": (2 * CHANNELS,), "offset": (CHANNELS,), "other": image}
        return {name: (n, *shape) for n, (name, shape) in zip(samples, rest.items(), strict=True)}

    def graph(self) -> Any:
        def make() -> None:
            given = {
                name: placeholder(name, (N if known else None, *shape[1:]))
                for known, (name, shape) in zip(
                    (*self.known, False), self.shapes((N,) * 4).items(), strict=True
                )
            }
            x, other = given["x"], given["other"]
            scale, offset = PARAMETERS[self.parameters](given["style"], given["offset"])
            split = [self.groups, CHANNELS // self.groups]
            view, axes = x, [1, 2]
            if self.groups < CHANNELS:
                view, axes = tf.reshape(x, [-1, *SPACE, *split]), [1, 2, 4]
                scale, offset = (tf.reshape(p, [-1, 1, 1, *split]) for p in (scale, offset))
            else:
                scale, offset = (p[:, None, None] for p in (scale, offset))
            moments = tf.nn.moments(view, axes, keepdims=True)
            y = FORMS[self.form](view, *moments, scale) + offset
            y = y if self.groups == CHANNELS else tf.reshape(y, [-1, *SPACE, CHANNELS])
            y = tf.identity(BEHIND[self.behind](y, x, other), name="y")
            wanted = [x, given["style"], given["offset"]]
            dy = placeholder("dy", y.shape)
            zero = tf.UnconnectedGradients.ZERO
            gradients = tf.gradients(y, wanted, grad_ys=dy, unconnected_gradients=zero)
            for name, value in zip(NAMES[1:], gradients, strict=True):
                tf.identity(value, name=name)

        return trace(make)

    def fits(self, samples: tuple[int, ...]) -> bool:
        return all(n == N for n, known in zip(samples, self.known, strict=False) if known)

    def samples_of_y(self, samples: tuple[int, ...]) -> int:
        x, style, offset, other = samples
        read = [x, style] + [offset] * (self.parameters != "split")
        return max(read + [other] * (self.behind in ("a term", "a factor")))


@pytest.mark.parametrize("number", range(12))
def test_as_stock_whatever_has_one_sample(rng: np.random.Generator, number: int) -> None:
    spelling = Spelling.draw(rng)
    print(spelling)
    graph = spelling.graph()
    after, report = rewrite(graph, fetches=NAMES)
    assert fused_nodes(after) and any(r.direction == "backward" for r in report.fused)
    for samples in filter(spelling.fits, SAMPLES):
        shapes = spelling.shapes(samples)
        shapes["dy"] = (spelling.samples_of_y(samples), *SPACE, CHANNELS)
        feeds = {name: rng.normal(0.5, 2.0, shape).astype("f") for name, shape in shapes.items()}
        for name in NAMES:
            stock, got = (run(each, feeds, f"{name}:0") for each in (graph, after))
            assert got.shape == stock.shape, (samples, name)
            tolerance = 2e-4 * max(np.abs(stock).max(), 1)
            np.testing.assert_allclose(got, stock, 2e-3, tolerance, err_msg=f"{samples} {name}")
