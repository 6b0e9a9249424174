"""Norms of random shapes on a GPU, beside a copy of the same bytes: which are farthest from it.

Needs build/libnv_norms_kernels.so (build.sh).

Usage: python benchmarks/kernels/gpu_hunt.py [--seconds 40] [--seed 1] [--most 30]
"""

from __future__ import annotations

import random
import time

import library
import torch
from columns import Timer
from random_cases import Case, options_parser, random_case, show_farthest

NUMBERS = 1 << 24  # of a tensor, at most
MIXTURES = ["float32", "bfloat16", "float16", "float32:float16"]  # of x and dx, and of y and dy
SLOPES = [None, None, 0.1]  # of a leaky relu behind an instance or group norm


def measure(timer: Timer, case: Case, mixture: str, slope: float | None) -> dict[str, float]:
    """Microseconds of a copy of x, and the parts of its bytes per second that both ways have."""
    of_x, _, of_y = mixture.partition(":")
    x = torch.randn(case.shape, device="cuda").to(getattr(torch, of_x))
    dy = torch.randn(case.shape, device="cuda").to(getattr(torch, of_y or of_x))
    y, dx = torch.empty_like(dy), torch.empty_like(x)
    gamma, beta = (torch.randn(case.params, device="cuda") for _ in range(2))
    dgamma, dbeta = torch.empty_like(gamma), torch.empty_like(beta)
    rstd = torch.empty(case.statistics, device="cuda")
    mean = None if case.kind == "rms" else torch.empty_like(rstd)
    activation = {} if slope is None else {"negative_slope": slope}
    forward = library.forward(
        x, gamma, beta, y, mean, rstd, epsilon=1e-3, **case.settings, **activation
    )
    if slope is not None:
        activation["beta"] = beta
    backward = library.backward(
        dy, x, gamma, mean, rstd, dx, dgamma, dbeta, **case.settings, **activation
    )
    copy = timer(lambda: dx.copy_(x), 3)
    other = dy.element_size() / x.element_size()
    return {
        "copy": copy * 1000,
        "forward": (1 + other) / 2 * copy / timer(forward, 3),
        "backward": (2 + other) / 2 * copy / timer(backward, 3),
    }


def main() -> None:
    options = options_parser(__doc__).parse_args()
    rng = random.Random(options.seed)
    torch.manual_seed(options.seed)
    timer = Timer()
    found = []
    end = time.monotonic() + options.seconds
    while time.monotonic() < end:
        case, mixture = random_case(rng, NUMBERS), rng.choice(MIXTURES)
        slope = rng.choice(SLOPES) if case.kind in ("instance", "group") else None
        parts = measure(timer, case, mixture, slope)
        behind = "" if slope is None else f", leaky relu {slope}"
        found.append((f"(copy {parts['copy']:.0f} us)  {mixture}  {case}{behind}", parts))
    name = torch.cuda.get_device_name()
    print(f"{name}, seed {options.seed}, {len(found)} shapes; part of a copy's speed")
    show_farthest(found, options.most, "7.3f", largest=False, word="least")


if __name__ == "__main__":
    main()
