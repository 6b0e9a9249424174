"""Every spelling of a normalization is found, fused, and as exact as before."""

from __future__ import annotations

import pytest

from .line import Case
from .pytest_cases import parameters, run


@pytest.mark.parametrize("case", parameters("keras3"))
def test_keras3_norm_is_fused(case: Case) -> None:
    run(case)


@pytest.mark.parametrize("case", parameters("functions", "spellings"))
def test_hand_written_norm_is_fused(case: Case) -> None:
    run(case)


@pytest.mark.parametrize("case", parameters("hub"))
def test_keras_hub_norm_is_fused(case: Case) -> None:
    run(case)


@pytest.mark.parametrize("case", parameters("legacy"))
def test_keras2_norm_is_fused(case: Case) -> None:
    run(case)


@pytest.mark.parametrize("case", parameters("contexts"))
def test_norm_among_neighbours_is_fused(case: Case) -> None:
    run(case)


@pytest.mark.parametrize("case", parameters("models", "more_models"))
def test_every_norm_of_a_model_is_fused(case: Case) -> None:
    run(case)
