"""Norms of random shapes on one thread of a CPU, beside a copy: which take longest for a number.

Needs build/libnv_norms_cpu_kernels.so (build_cpu.sh).

Usage: python benchmarks/kernels/cpu_hunt.py [--seconds 40] [--seed 1] [--most 30]
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Callable

import cpu_library
import ml_dtypes
import numpy as np
from random_cases import Case, random_case

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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most", type=int, default=30, help="lines for each of the two ways")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    pool = np.random.default_rng(options.seed).normal(size=NUMBERS).astype(np.float32)
    found = []
    end = time.monotonic() + options.seconds
    while time.monotonic() < end:
        case, mixture = random_case(rng, NUMBERS), rng.choice(MIXTURES)
        found.append((case, mixture, measure(case, mixture, pool)))
    print(f"{cpu_library.target()}, seed {options.seed}, {len(found)} shapes; ns a number")
    for way in ("forward", "backward"):
        mean = math.exp(sum(math.log(took[way]) for *_, took in found) / len(found))
        print(f"{way}: geometric mean {mean:.2f}, longest:")
        for case, mixture, took in sorted(found, key=lambda f: -f[2][way])[: options.most]:
            place = f"{case.kind} {'x'.join(map(str, case.shape))} {case.settings}"
            print(f"{took[way]:9.2f} (copy {took['copy']:.2f})  {mixture}  {place}")


if __name__ == "__main__":
    main()
