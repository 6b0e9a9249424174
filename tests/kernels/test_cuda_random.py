"""The CUDA kernels on norms of random shapes, types and settings, against float64.

Lists of shapes have what their authors thought of. Two of three runs are planned for a GPU of a few
multiprocessors, on which small tensors take the kernels of large ones. Expected values: float64
from the formulas, as in cuda_cases.py. More cases, and others: NV_NORMS_RANDOM_SECONDS=60
NV_NORMS_RANDOM_SEED=1000.
"""

from __future__ import annotations

import math
import os
import random
import time

import pytest
from cuda_cases import BF16, F16, F32, F64, SLOPES, SMALL, random_cases, run_case, torch, within

# x and dx, y and dy, gamma and beta
TYPES = [
    (F32, F32, F32), (F32, F32, F32), (BF16, BF16, F32), (F16, F16, F32), (BF16, BF16, BF16),
    (F32, F16, F32), (F32, BF16, F32), (F64, F64, F64), (F16, F32, F32), (BF16, F32, F32),
]  # fmt: skip
SEED = int(os.environ.get("NV_NORMS_RANDOM_SEED", "1"))
SECONDS = float(os.environ.get("NV_NORMS_RANDOM_SECONDS", "4"))
MOST_NUMBERS = 2**14 if SMALL else 2**22


def random_settings(rng: random.Random, dtype: torch.dtype, ndim: int) -> dict:
    """Of run_case: each is as usual most of the time."""
    out: dict = {"mean": rng.choice([0.5, 0.5, 0.5, 100.0, 1e4])}
    if rng.random() < 0.15:
        out["misaligned"] = True
    if rng.random() < 0.1:
        out["params"] = False
    if rng.random() < 0.1:
        out["far"] = 1000.0
        out["far_axis"] = rng.randrange(-ndim, 0)
    # Not with that: far below zero silu's derivative times dy is too small for 16 bits.
    elif rng.random() < 0.4:
        out["slope"] = rng.choice(SLOPES)
    return within(out, dtype)


def random_run(seed: int) -> tuple[tuple, dict]:
    """The case and the settings that run_case gets."""
    rng = random.Random(seed)
    numbers = int(2 ** rng.uniform(6, MOST_NUMBERS.bit_length() - 1))
    case = random_cases.random_case(rng, numbers)
    dtype, other, params = rng.choice(TYPES)
    settings = {"dtype": dtype, "dy_type": other, "out_type": other, "dx_type": dtype}
    settings |= {"param_type": params, **random_settings(rng, dtype, len(case.shape))}
    if "axis" in case.settings:
        settings["formula"] = case.settings["formula"]
        # Where x is not centered a large mean, or an x of almost no deviation, leaves few digits.
        inputs = math.prod(case.shape[a] for a in case.settings["axis"])
        if settings["mean"] == 0.5 and "far" not in settings and inputs >= 8 and rng.random() < 0.4:
            settings["formula"] = "scale_only"
        return (case.shape, case.settings["axis"]), settings
    per_sample = ["per sample"] if rng.random() < 0.3 else []
    return (
        (case.shape, case.settings["groups"], case.settings["channels_last"], *per_sample),
        settings,
    )


@pytest.mark.parametrize("multiprocessors", ["all", "8", "20"])
def test_random_norms(multiprocessors: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if multiprocessors != "all":
        monkeypatch.setenv("NV_NORMS_MULTIPROCESSORS", multiprocessors)
    end, seed = time.monotonic() + SECONDS, SEED
    failures = []
    while time.monotonic() < end:
        case, settings = random_run(seed)
        try:
            # Twice what the lists' shapes are held to: these have sums of any length.
            run_case(case, units=16, **settings)
        except (AssertionError, RuntimeError, ValueError) as error:
            if "kink" not in str(error):
                failures.append(f"seed {seed}: {case} {settings}: {error}")
        seed += 1
    print(f"seeds {SEED} to {seed - 1}")
    assert not failures, "\n".join(failures)
