"""The harness itself: what it lets pass in a model's training, and what it does not."""

from __future__ import annotations

import numpy as np
import pytest

import nv_norms_rewriter

from .cases import load
from .harness import Outcome, _compare, build_and_run, reference, rounding_noise
from .line import unfold
from .values import draw_inputs

NAME = "model.bert/float32/batch/train"


@pytest.fixture(scope="module")
def run():
    """The case, its inputs, float64 and stock results, and what rounding does to these."""
    pytest.importorskip("keras_hub")
    (case,) = [case for case in unfold(load("models")) if case.name == NAME]
    inputs = draw_inputs(case.line.inputs, case.policy, case.seed)
    with nv_norms_rewriter.disabled():
        want = reference(case, inputs)
        stock, _ = build_and_run(case, case.policy, inputs)
        return case, inputs, want, stock, rounding_noise(case, inputs)


def _problems(run, fused) -> list[str]:
    case, inputs, want, stock, _ = run
    counts = dict(case.expect)
    outcome = Outcome(case.name, case.seed, case.expect, found=counts, backward=counts)
    _compare(case, inputs, want, (stock, []), (fused, []), outcome)
    return outcome.problems


def test_stock_itself_passes(run) -> None:
    assert not _problems(run, run[3])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("number", [0, 1, 17, -1])
def test_one_output_that_is_off_by_more_than_rounding_does(run, number: int) -> None:
    *_, stock, noise = run
    fused = [output.copy() for output in stock]
    size = np.abs(fused[number]).max()
    assert noise[number] < 1e-3 * size
    fused[number].flat[0] += 8 * noise[number] + 1e-4 * size
    assert len(_problems(run, fused)) == 1


def test_outputs_that_are_all_a_little_worse(run) -> None:
    """Each within what rounding may do to it, but not all of them."""
    _, _, want, stock, _ = run
    fused = [(w + 2.5 * (s - w)).astype(s.dtype) for s, w in zip(stock, want, strict=True)]
    assert any("a bit is lost" in problem for problem in _problems(run, fused))
