"""Random graphs keep their values, whatever is fused in them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

import nv_norms_rewriter

from .fuzz import Graph, graph, modulated, used_twice
from .values import max_error, unit_in_last_place

DEFAULT, TWICE, MODULATED, LONG = 16, 4, 8, 3000


def fused_and_errors(random: Graph) -> tuple[int, list[str]]:
    """How many norms were fused in a graph, and what is wrong with its values."""
    with nv_norms_rewriter.disabled():
        try:
            stock = random.run()
        except Exception:  # noqa: BLE001 (shapes that do not broadcast: not a graph)
            return 0, []
        exact = random.exact()
    nv_norms_rewriter.clear_report()
    fused = random.run()
    report = nv_norms_rewriter.report()
    count = sum(record.fused for record in report)
    problems = []
    for number, (got, same, want) in enumerate(zip(fused, stock, exact, strict=True)):
        if not np.all(np.isfinite(want)) or not np.all(np.isfinite(np.float64(same))):
            continue
        # Twice stock's error, and some roundings of the type, of the largest number in it; one of
        # the narrower type in which it was on the way.
        size = max(1.0, np.abs(want).max(initial=0.0))
        unit = unit_in_last_place(size, got.dtype)
        allowed = 2 * max_error(same, want) + 64 * unit
        if random.rounded_to:
            allowed += unit_in_last_place(size, random.rounded_to)
        error = max_error(got, want)
        if error > allowed:
            problems.append(
                f"{random}\noutput {number}: error {error}, allowed {allowed}\n{report}"
            )
    return count, problems


def check(graphs: Iterable[Graph]) -> None:
    counts, problems = [], []
    for random in graphs:
        count, wrong = fused_and_errors(random)
        counts.append(count)
        problems += wrong
    assert not problems, f"{len(problems)} wrong\n" + "\n\n".join(problems[:5])
    assert np.mean(np.asarray(counts) > 0) > 0.15, "the graphs hardly hold a norm any more"


def test_random_graphs_keep_their_values() -> None:
    check(map(graph, range(DEFAULT)))


def test_random_graphs_that_are_used_twice_keep_their_values() -> None:
    check(used_twice(graph(seed)) for seed in range(TWICE))


def test_random_graphs_that_are_modulated_keep_their_values() -> None:
    check(modulated(seed) for seed in range(MODULATED))


def test_gradient_that_is_taken_off_itself() -> None:
    """A mean over one element: x - x, whose gradient is 0, as each of its terms is taken off again.

    One of each two was fused, so that rounding was left of the 0: 1.4e-5 in float32, 4.4e-14 in
    float64. (rstd is 32 and the terms are of up to 80; 24 elements are summed. With four roundings
    each that comes to 24 * 4 * 80 * 2^-24 = 5e-4 at most.)
    """
    count, problems = fused_and_errors(graph(700361))
    assert count and not problems, problems


@pytest.mark.slow
def test_many_random_graphs_keep_their_values() -> None:
    check(map(graph, range(DEFAULT, DEFAULT + LONG)))


@pytest.mark.slow
def test_many_random_graphs_that_are_used_twice_keep_their_values() -> None:
    check(used_twice(graph(seed)) for seed in range(TWICE, TWICE + LONG // 4))


@pytest.mark.slow
def test_many_random_graphs_that_are_modulated_keep_their_values() -> None:
    check(modulated(seed) for seed in range(MODULATED, MODULATED + LONG // 2))
