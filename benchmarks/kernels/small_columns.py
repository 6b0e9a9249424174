"""Instance and group norm, channels last, of tensors that the L2 cache holds, or little more.

usage: python benchmarks/kernels/small_columns.py --out FILE.csv [--before FILE.csv]

One GPU. Microseconds of one call in a CUDA graph of 20, medians of 9 graphs: what they read is in
the L2 cache, as what a convolution before has written is ("warm"); and with the cache filled with
other bytes before each call, whose own time is taken off ("cold"). --before: what another build
(NV_NORMS_KERNELS) wrote; prints how many times as fast this one is.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable

import library
import torch
from timing import microseconds

EPSILON = 1e-3
# n, positions, channels, groups. One sample, as of a generator or a segmented volume;
ONE = [
    (1, 56**2, 256, 32), (1, 64**2, 256, 256), (1, 64**2, 320, 32), (1, 112**2, 64, 32),
    (1, 24**3, 64, 64), (1, 128**2, 64, 64), (1, 128**2, 128, 128), (1, 128**2, 192, 192),
    (1, 128**2, 256, 32), (1, 32**3, 64, 64), (1, 32**3, 128, 128), (1, 192**2, 96, 96),
    (1, 96**2, 512, 32), (1, 256**2, 32, 32), (1, 256**2, 64, 64), (1, 256**2, 128, 128),
    (1, 48**3, 64, 64), (1, 64**3, 32, 32), (1, 64**3, 64, 64), (1, 192**2, 256, 32),
]  # fmt: skip
# a few;
FEW = [
    (2, 112**2, 64, 32), (2, 24**3, 128, 128), (2, 32**3, 64, 64), (2, 64**2, 256, 256),
    (2, 32**2, 640, 32), (2, 16**2, 1280, 32), (2, 64**2, 320, 32), (2, 256**2, 64, 64),
    (2, 48**3, 64, 64), (3, 28**2, 512, 32), (3, 128**2, 64, 64), (4, 64**2, 128, 128),
    (4, 64**2, 320, 32), (4, 128**2, 64, 64), (5, 56**2, 256, 32), (6, 128**2, 64, 64),
]  # fmt: skip
# many.
MANY = [
    (8, 32**2, 256, 32), (8, 32**2, 256, 256), (8, 32 * 48, 256, 256), (8, 64**2, 64, 64),
    (8, 64**2, 320, 32), (8, 32**2, 640, 32), (8, 64**2, 256, 256), (10, 32**2, 128, 128),
    (12, 32**2, 128, 128), (16, 28**2, 256, 32), (16, 56**2, 64, 64), (16, 32**2, 320, 32),
    (16, 40**2, 256, 256), (20, 28**2, 128, 128), (24, 40**2, 128, 128), (32, 28**2, 128, 32),
    (32, 32**2, 128, 128), (32, 56**2, 64, 32), (32, 28**2, 512, 32), (32, 56**2, 128, 32),
    (33, 28**2, 128, 128), (64, 28**2, 64, 32), (64, 14**2, 256, 32), (128, 32**2, 32, 32),
]  # fmt: skip
TYPES = [
    (torch.bfloat16, torch.bfloat16),
    (torch.float32, torch.float32),
    (torch.float32, torch.bfloat16),
]
FIELDS = ["x", "y", "n", "positions", "channels", "groups", "megabytes", "copy"]
TIMES = ["forward", "gradient", "forward_cold", "gradient_cold"]


def measure(case: tuple[int, ...], x_type: torch.dtype, y_type: torch.dtype) -> dict:
    n, positions, channels, groups = case
    x = torch.randn(n, positions, channels, device="cuda", dtype=x_type) * 2 + 3
    dy = torch.randn_like(x, dtype=y_type)
    gamma, beta = (torch.randn(channels, device="cuda") for _ in range(2))
    mean, rstd = (torch.empty(n * groups, device="cuda") for _ in range(2))
    y, dx = torch.empty_like(dy), torch.empty_like(x)
    dgamma, dbeta = torch.empty_like(gamma), torch.empty_like(gamma)
    layout = {"groups": groups, "channels_last": True}
    forward = library.forward(x, gamma, beta, y, mean, rstd, epsilon=EPSILON, **layout)
    gradient = library.backward(dy, x, gamma, mean, rstd, dx, dgamma, dbeta, **layout)
    other = torch.empty(80 << 20, dtype=torch.uint8, device="cuda")
    fill = microseconds(other.zero_, 10)

    def cold(run: Callable[[], object]) -> float:
        return microseconds(lambda: (other.zero_(), run()), 10) - fill

    times = [microseconds(run) for run in (lambda: dx.copy_(x), forward, gradient)]
    times += [cold(forward), cold(gradient)]
    names = [str(x_type)[6:], str(y_type)[6:]]
    cells = [*names, *case, f"{x.nbytes / 1e6:.1f}", *(f"{time:.2f}" for time in times)]
    return dict(zip(FIELDS + TIMES, cells, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True)
    parser.add_argument("--before")
    options = parser.parse_args()
    print(torch.cuda.get_device_name(), torch.__version__)
    rows = [measure(case, *types) for types in TYPES for case in ONE + FEW + MANY]
    with open(options.out, "w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS + TIMES, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    if options.before is None:
        return
    with open(options.before, newline="") as file:
        before = list(csv.DictReader(file))
    print("| x, y | shape | MB | copy | " + " | ".join(TIMES).replace("_", ", ") + " |")
    print("|---|---|---|---|---|---|---|---|")
    for old, new in zip(before, rows, strict=True):
        shape = f"{new['n']} x {new['positions']} x {new['channels']} ({new['groups']})"
        times = [
            f"{float(old[t]):.1f} -> {float(new[t]):.1f} ({float(old[t]) / float(new[t]):.2f})"
            for t in TIMES
        ]
        cells = [f"{new['x']}, {new['y']}", shape, new["megabytes"], new["copy"], *times]
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
