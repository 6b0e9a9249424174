"""Norms of random shapes on a GPU, beside a copy of the same bytes: which are farthest from it.

Needs build/libnv_norms_kernels.so (build.sh). With --peer, those that PyTorch has a kernel for are
timed with it, too, and the ones that it takes faster are listed.

Usage: python benchmarks/kernels/gpu_hunt.py [--seconds 40] [--seed 1] [--most 30] [--peer]
"""

from __future__ import annotations

import math
import random
import time
from functools import partial

import library
import torch
from random_cases import Case, options_parser, random_case, show_farthest
from timing import milliseconds

NUMBERS = 1 << 24  # of a tensor, at most
MIXTURES = ["float32", "bfloat16", "float16", "float32:float16"]  # of x and dx, and of y and dy
SLOPES = [None, None, 0.1]  # of a leaky relu behind an instance or group norm


def measure(case: Case, mixture: str, slope: float | None) -> dict[str, float]:
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
    copy = milliseconds(lambda: dx.copy_(x), 3)
    other = dy.element_size() / x.element_size()
    return {
        "copy": copy * 1000,
        "forward": (1 + other) / 2 * copy / milliseconds(forward, 3),
        "backward": (2 + other) / 2 * copy / milliseconds(backward, 3),
    }


def pytorch(case: Case, dtype: torch.dtype) -> dict[str, float] | None:
    """Milliseconds of PyTorch's kernels; None where it has none, or they fail.

    It gets norms channels last in its memory format of that name, or channels first where x has no
    such format.
    """
    x, dy = (torch.randn(case.shape, device="cuda").to(dtype) for _ in range(2))
    gamma, beta = (torch.randn(case.params, device="cuda", dtype=dtype) for _ in range(2))
    native = torch.ops.aten
    every = [True, True, True]
    if case.kind in ("layer", "rms"):
        axes = case.settings["axis"]
        if case.kind == "rms" or axes != list(range(axes[0], x.dim())):
            return None
        shape = case.shape[axes[0] :]
        gamma, beta = gamma.view(shape), beta.view(shape)
        norm = partial(native.native_layer_norm, x, shape, gamma, beta, 1e-3)
        gradient = native.native_layer_norm_backward
        arguments = (dy, x, shape), (gamma, beta, every)
    else:
        if case.settings["channels_last"]:
            formats = {4: torch.channels_last, 5: torch.channels_last_3d}
            form = formats.get(x.dim(), torch.contiguous_format)
            x, dy = (t.movedim(-1, 1).contiguous(memory_format=form) for t in (x, dy))
        sizes = (x.shape[0], x.shape[1], x[0, 0].numel(), case.settings["groups"])
        norm = partial(native.native_group_norm, x, gamma, beta, *sizes, 1e-3)
        gradient = native.native_group_norm_backward
        arguments = (dy, x), (gamma, *sizes, every)
    try:
        _, *statistics = norm()
        backward = partial(gradient, *arguments[0], *statistics, *arguments[1])
        return {"forward": milliseconds(norm, 3), "backward": milliseconds(backward, 3)}
    except RuntimeError:
        return None


def show_behind(found: list[tuple[str, dict[str, float]]], most: int) -> None:
    """found: PyTorch's time over ours, of each way."""
    for way in ("forward", "backward"):
        mean = math.exp(sum(math.log(one[way]) for _, one in found) / max(1, len(found)))
        behind = sorted((one[way], text) for text, one in found if one[way] < 0.97)
        print(f"{way}: {mean:.2f} times as fast as PyTorch; not so {len(behind)} of {len(found)}:")
        for ratio, text in behind[:most]:
            print(f"{ratio:7.3f} {text}")


def main() -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--peer", action="store_true", help="time PyTorch, too")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    torch.manual_seed(options.seed)
    found = []
    beside = []  # PyTorch
    end = time.monotonic() + options.seconds
    while time.monotonic() < end:
        case, mixture = random_case(rng, NUMBERS), rng.choice(MIXTURES)
        slope = rng.choice(SLOPES) if case.kind in ("instance", "group") else None
        parts = measure(case, mixture, slope)
        behind = "" if slope is None else f", leaky relu {slope}"
        text = f"(copy {parts['copy']:.0f} us)  {mixture}  {case}{behind}"
        found.append((text, parts))
        peer = None
        if options.peer and slope is None and ":" not in mixture:
            peer = pytorch(case, getattr(torch, mixture))
        if peer:
            copy = parts["copy"] / 1000
            ratios = {"forward": peer["forward"] * parts["forward"] / copy}
            ratios["backward"] = peer["backward"] * parts["backward"] / (1.5 * copy)
            beside.append((f"{parts['forward']:.3f}, {parts['backward']:.3f} {text}", ratios))
    name = torch.cuda.get_device_name()
    print(f"{name}, seed {options.seed}, {len(found)} shapes; part of a copy's speed")
    show_farthest(found, options.most, "7.3f", largest=False, word="least")
    if options.peer:
        show_behind(beside, options.most)


if __name__ == "__main__":
    main()
