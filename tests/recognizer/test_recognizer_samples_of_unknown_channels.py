"""A scale and an offset of each sample beside an x whose channels are unknown: with one channel, x
is broadcast to theirs. So they stay beside the op."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from recognizer_graphs import check, placeholder, run, trace

import oracle
from nv_norms_rewriter import rewrite

EPSILON = 1e-3
CHANNELS = 4
SPACES = {(-1,): (5,), (1, 2): (6, 3)}
# Samples and channels of x, samples of the scale.
CASES = [(2, CHANNELS, 2), (1, CHANNELS, 3), (4, 1, 1), (1, 1, 1), (1, 1, 2), (8, 1, 1)]


def _norm(axes: tuple[int, ...], scale_first: bool):
    """y of x = a + b, of which nothing but the rank is known, and its inputs."""
    space = SPACES[axes]
    x = tf.add(*(placeholder(name, [None] * (len(space) + 2)) for name in "ab"))
    scale, offset = (
        placeholder(name, (None, *[1] * len(space), CHANNELS)) for name in ("scale", "offset")
    )
    mean, variance = tf.nn.moments(x, axes, keepdims=True)
    root = tf.math.rsqrt(variance + EPSILON)
    y = (x - mean) * (root * scale) if scale_first else (x - mean) * root * scale
    return tf.add(y, offset, name="y"), scale, offset


def _values(rng, axes: tuple[int, ...], case: tuple[int, int, int]):
    n, channels, samples = case
    space = SPACES[axes]
    shapes = dict.fromkeys("ab", (n, *space, channels))
    shapes |= dict.fromkeys(("scale", "offset"), (samples, *[1] * len(space), CHANNELS))
    feeds = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    xhat, *_ = oracle.normalize(np.float64(feeds["a"]) + feeds["b"], axes, EPSILON, True)
    return feeds, xhat, xhat * feeds["scale"] + feeds["offset"]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("scale_first", [False, True])
@pytest.mark.parametrize("axes", SPACES, ids=str)
def test_forward(rng, axes, scale_first, case) -> None:
    """The norm is fused, without the scale, where that comes last."""
    feeds, _, y = _values(rng, axes, case)
    check(trace(lambda: _norm(axes, scale_first)), feeds, y, int(not scale_first), tolerance=1e-4)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("axes", SPACES, ids=str)
def test_gradient(rng, axes, case) -> None:
    """Of the scale and of the offset; with two unknown sizes there was a Reshape to two of them."""

    def make() -> None:
        y, scale, offset = _norm(axes, scale_first=False)
        for name, gradient in zip(
            ("dscale", "doffset"), tf.gradients(tf.square(y), [scale, offset]), strict=True
        ):
            tf.identity(gradient, name=name)

    graph = trace(make)
    feeds, xhat, y = _values(rng, axes, case)
    after, _ = rewrite(graph, fetches=["y", "dscale", "doffset"])
    one = tuple(i for i, n in enumerate(feeds["scale"].shape) if n == 1)
    expected = [(2 * y * part).sum(one, keepdims=True) for part in (xhat, 1.0)]
    for got, want in zip(run(after, feeds, ["dscale:0", "doffset:0"]), expected, strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, 1e-3, 1e-3)
