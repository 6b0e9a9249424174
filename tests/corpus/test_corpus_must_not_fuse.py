"""What looks like a normalization and is none stays as it is, bit by bit."""

from __future__ import annotations

import pytest

from .line import Case
from .pytest_cases import parameters, run


@pytest.mark.parametrize("case", parameters("near_misses", "near_numbers"))
def test_near_miss_is_left_alone(case: Case) -> None:
    run(case)
