"""Norms of random shapes on one thread of a CPU, beside a copy: which take longest for a number.

Needs build/libnv_norms_cpu_kernels.so (build_cpu.sh).

Usage: python benchmarks/kernels/cpu_hunt.py [--seconds 40] [--seed 1] [--most 30]
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable

import cpu_library
import ml_dtypes
import numpy as np
from random_cases import Case, options_parser, random_case, show_farthest

NUMBERS = 1 << 22  # of a tensor, at most
TYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
MIXTURES = ["float32", "bfloat16", "float16", "float32:bfloat16"]  # of x and dx, and of y and dy


def nanoseconds(run: Callable[[], object]) -> float:
    """The least of three calls."""
    run()
    taken = []
    for _ in range(3):
        start = time.perf_counter_ns()
        run()
        taken.append(time.perf_counter_ns() - start)
    return min(taken)


def measure(case: Case, mixture: str, pool: np.ndarray) -> dict[str, float]:
    """Nanoseconds a number: a copy of x, forward, backward."""
    of_x, _, of_y = mixture.partition(":")
    count = math.prod(case.shape)
    x = pool[:count].reshape(case.shape).astype(TYPES[of_x])
    dy = pool[::-1][:count].reshape(case.shape).astype(TYPES[of_y or of_x])
    y, dx = np.zeros_like(dy), np.zeros_like(x)
    gamma, beta = pool[: case.params].copy(), pool[: case.params].copy()
    dgamma, dbeta = np.zeros_like(gamma), np.zeros_like(beta)
    rstd = np.zeros(case.statistics, np.float32)
    mean = None if case.kind == "rms" else np.zeros_like(rstd)
    forward = cpu_library.forward(x, gamma, beta, y, mean, rstd, epsilon=1e-3, **case.settings)
    backward = cpu_library.backward(
        dy, x, gamma, mean, rstd, dx, dgamma, dbeta, epsilon=1e-3, **case.settings
    )
    ways = {"copy": lambda: np.copyto(dx, x), "forward": forward, "backward": backward}
    return {way: nanoseconds(run) / count for way, run in ways.items()}


def main() -> None:
    options = options_parser(__doc__).parse_args()
    rng = random.Random(options.seed)
    pool = np.random.default_rng(options.seed).normal(size=NUMBERS).astype(np.float32)
    found = []
    end = time.monotonic() + options.seconds
    while time.monotonic() < end:
        case, mixture = random_case(rng, NUMBERS), rng.choice(MIXTURES)
        took = measure(case, mixture, pool)
        found.append((f"(copy {took['copy']:.2f})  {mixture}  {case}", took))
    print(f"{cpu_library.target()}, seed {options.seed}, {len(found)} shapes; ns a number")
    show_farthest(found, options.most, "9.2f", largest=True, word="longest")


if __name__ == "__main__":
    main()
