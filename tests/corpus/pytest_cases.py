"""The tables as pytest parameters."""

from __future__ import annotations

import pytest

from .cases import load
from .line import Case, unfold


def parameters(*tables: str) -> list:
    """Every case of the tables, the long tail marked slow."""
    return [
        pytest.param(case, id=case.name, marks=[pytest.mark.slow] if case.slow else [])
        for table in tables
        for case in unfold(load(table))
    ]


def run(case: Case) -> None:
    """Fails with all that is known of the case."""
    import nv_norms_rewriter

    from .harness import check

    outcome = check(case, nv_norms_rewriter)
    if outcome.skipped:
        pytest.skip(outcome.skipped)
    assert outcome.ok, f"\n{outcome}"
