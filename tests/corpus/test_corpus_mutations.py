"""A graph of norms in which something was changed computes the same, whatever is fused in it."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import tensorflow as tf

import nv_norms_rewriter

from .graphs import run
from .mutations import NORMS, change, source

DEFAULT, LONG = 600, 30_000


def outcome(seed: int) -> tuple[str, str]:
    """What came of a seed's graph, in a word, and all about it if it came out wrong."""
    rng = np.random.default_rng(seed)
    names = sorted(NORMS)
    name = names[int(rng.integers(len(names)))]
    options = [bool(x) for x in rng.random(3) < 0.6]
    graph, inputs, fetches, shapes = source(name, *options)
    changed = tf.compat.v1.GraphDef()
    changed.CopyFrom(graph)
    words = [change(changed, rng) for _ in range(int(rng.choice([1, 1, 1, 2, 3])))]
    draws = [
        {
            tensor: rng.normal(offset, scale, shape)
            if len(shape) > 1
            else rng.normal(1, 0.5, shape)
            for tensor, shape in zip(inputs, shapes, strict=True)
        }
        for offset, scale in ((0, 1), (2, 0.03), (0, 30))
    ]
    try:
        expected = [run(changed, fetches, draw) for draw in draws]
    except (ValueError, tf.errors.InvalidArgumentError):
        return "no graph", ""  # shapes that do not fit
    after, report = nv_norms_rewriter.rewrite(changed, fetches=fetches)
    if not report.fused:
        return "left", ""
    about = f"seed {seed}: {name} (train, known, optimized: {options})\n" + "\n".join(words)
    for draw, values in zip(draws, expected, strict=True):
        for number, (got, want) in enumerate(zip(run(after, fetches, draw), values, strict=True)):
            if not np.all(np.isfinite(want)):
                continue
            # Sums of some ten terms in another order; 1e-9 leaves them ten thousand roundings.
            allowed = 1e-9 * max(1.0, np.abs(want).max(initial=0.0))
            if got.shape != want.shape or not np.abs(got - want).max(initial=0.0) <= allowed:
                return "wrong", f"{about}\noutput {number}: {got}, expected {want}\n{report}"
    return "fused", ""


def check(seeds: range) -> None:
    outcomes = [outcome(seed) for seed in seeds]
    wrong = [about for word, about in outcomes if word == "wrong"]
    assert not wrong, f"{len(wrong)} wrong\n" + "\n\n".join(wrong[:5])
    counts = Counter(word for word, _ in outcomes)
    # Else the changes say nothing: they leave no norm, or hit none.
    assert counts["fused"] > 0.2 * len(seeds) and counts["left"] > 0.2 * len(seeds), counts


def test_changed_graphs_keep_their_values() -> None:
    check(range(DEFAULT))


@pytest.mark.slow
def test_many_changed_graphs_keep_their_values() -> None:
    check(range(DEFAULT, DEFAULT + LONG))


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(13522, id="y depends on what is dy elsewhere"),  # recursion without an end
        pytest.param(27943, id="second gradient by y itself"),  # read a node that was removed
    ],
)
def test_changed_graph_that_went_wrong_once(seed: int) -> None:
    word, about = outcome(seed)
    assert word == "fused", about
