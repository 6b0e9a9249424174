"""A graph of norms in which something was changed computes the same, whatever is fused in it."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import tensorflow as tf

import nv_norms_rewriter

from .graphs import run_all
from .mutations import ACTIVATED, NORMS, change, source

DEFAULT, LONG = 66, 30_000
ACTIVATIONS, MORE_ACTIVATIONS = 25, 10_000


def _is_noise(graph, fetches, draw, number: int, allowed: float) -> bool:
    """Whether an output moves as far by roundings of the inputs: 1 / (what is 0 but for them)."""
    rng = np.random.default_rng(1)
    near = {k: v * (1 + 1e-15 * rng.normal(size=v.shape)) for k, v in draw.items()}
    first, second = (values[number] for values in run_all(graph, fetches, [draw, near]))
    return not np.abs(first - second).max(initial=0.0) <= allowed


def outcome(seed: int, activated: bool = False) -> tuple[str, str]:
    """What came of a seed's graph, in a word, and all about it if it came out wrong.

    activated: there is an activation behind the norm, and the graph is rewritten for a GPU.
    """
    rng = np.random.default_rng(seed)
    names = sorted(ACTIVATED if activated else NORMS)
    name = names[int(rng.integers(len(names)))]
    options = [bool(x) for x in rng.random(3) < 0.6]
    graph, inputs, fetches, shapes = source(name, *options, activated)
    changed = tf.compat.v1.GraphDef()
    changed.CopyFrom(graph)
    count = int(rng.choice([1, 1, 1, 2, 3]))
    words = [change(changed, rng, activated) for _ in range(count)]
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
        expected = run_all(changed, fetches, draws)
    except (ValueError, tf.errors.InvalidArgumentError):
        return "no graph", ""  # shapes that do not fit
    device = "GPU" if activated else None
    after, report = nv_norms_rewriter.rewrite(changed, device, fetches)
    if not report.fused:
        return "left", ""
    about = f"seed {seed}: {name} (train, known, optimized: {options})\n" + "\n".join(words)
    fused = run_all(after, fetches, draws)
    for draw, outputs, values in zip(draws, fused, expected, strict=True):
        for number, (got, want) in enumerate(zip(outputs, values, strict=True)):
            if not np.all(np.isfinite(want)):
                continue
            # Sums of some ten terms in another order; 1e-9 leaves them ten thousand roundings.
            allowed = 1e-9 * max(1.0, np.abs(want).max(initial=0.0))
            if got.shape != want.shape or not np.abs(got - want).max(initial=0.0) <= allowed:
                if got.shape == want.shape and _is_noise(changed, fetches, draw, number, allowed):
                    return "noise", ""
                return "wrong", f"{about}\noutput {number}: {got}, expected {want}\n{report}"
    inside = any(record.negative_slope != 1 for record in report.fused)
    return "inside" if inside else "fused", ""


def check(seeds: range, activated: bool = False) -> None:
    outcomes = [outcome(seed, activated) for seed in seeds]
    wrong = [about for word, about in outcomes if word == "wrong"]
    assert not wrong, f"{len(wrong)} wrong\n" + "\n\n".join(wrong[:5])
    counts = Counter(word for word, _ in outcomes)
    # Else the changes say nothing: they leave no norm, or hit none.
    done = counts["inside" if activated else "fused"]
    left = counts["left"] + (counts["fused"] if activated else 0)
    assert done > 0.2 * len(seeds) and left > 0.2 * len(seeds), counts


def test_changed_graphs_keep_their_values() -> None:
    check(range(DEFAULT))


@pytest.mark.slow
def test_many_changed_graphs_keep_their_values() -> None:
    check(range(DEFAULT, DEFAULT + LONG))


def test_changed_graphs_with_activations_keep_their_values() -> None:
    check(range(ACTIVATIONS), activated=True)


@pytest.mark.slow
def test_many_changed_graphs_with_activations_keep_their_values() -> None:
    check(range(ACTIVATIONS, ACTIVATIONS + MORE_ACTIVATIONS), activated=True)


@pytest.mark.parametrize(
    ("seed", "activated"),
    [
        # recursion without an end
        pytest.param(13522, False, id="y depends on what is dy elsewhere"),
        # read a node that was removed
        pytest.param(27943, False, id="second gradient by y itself"),
        # a batch of any size was taken for one of 1
        pytest.param(9349, True, id="what nobody fetches wants other sizes"),
    ],
)
def test_changed_graph_that_went_wrong_once(seed: int, activated: bool) -> None:
    word, about = outcome(seed, activated)
    assert word == "fused", about
