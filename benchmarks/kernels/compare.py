"""Two builds of the CUDA kernels over random shapes: which of them became faster, or slower.

A shape that the first build takes close to a copy's speed is not timed with the second.

Usage: python benchmarks/kernels/compare.py BEFORE.so AFTER.so [--below 0.4] [--seconds 40]
       [--seed 1] [--most 30] [--cases KIND:SHAPE:HOW ...]

--cases: these in place of random ones, a line each of parts of a copy's speed, before -> after,
forward and gradient, for every mixture of types; such as layer:64x768x49:1 (the axes),
instance:8x64x127x127:first, group:8x56x56x64:last/32 (where the channels are, how many groups).
"""

from __future__ import annotations

import math
import os
import random
import time
from typing import NamedTuple

import library
import torch
from gpu_hunt import MIXTURES, NUMBERS, measure
from random_cases import Case, channels_of, group_case, layer_case, options_parser, random_case

NOISE = 0.15  # two timings of the same kernel may be that far apart


class Pair(NamedTuple):
    """Parts of a copy's speed, and what was measured."""

    before: float
    after: float
    text: str

    @property
    def gain(self) -> float:
        return self.after / self.before

    def __str__(self) -> str:
        return f"{self.before:.4f} -> {self.after:.4f} {self.text}"


def use(path: str) -> None:
    """Has the calls that are made from now on go to this build."""
    os.environ["NV_NORMS_KERNELS"] = path
    library.library.cache_clear()


def named_case(text: str) -> Case:
    """Of KIND:SHAPE:HOW."""
    kind, sizes, how = text.split(":")
    shape = tuple(map(int, sizes.split("x")))
    if kind in ("layer", "rms"):
        return layer_case(kind, shape, [int(axis) for axis in how.split(",")])
    where, _, groups = how.partition("/")
    last = where == "last"
    return group_case(kind, shape, int(groups or channels_of(shape, last)), last)


def compare_cases(texts: list[str], before: str, after: str) -> None:
    print("case, us of a copy:", ", ".join(MIXTURES))
    for text in texts:
        case = named_case(text)
        cells = []
        for mixture in MIXTURES:
            use(before)
            old = measure(case, mixture, None)
            use(after)
            new = measure(case, mixture, None)
            ways = (f"{old[way]:.2f} -> {new[way]:.2f}" for way in ("forward", "backward"))
            cells.append(", ".join(ways))
        print(f"{text}, {old['copy']:.0f}:", " | ".join(cells), flush=True)


def mean_gain(pairs: list[Pair]) -> float:
    """Geometric; 1 of none."""
    return math.exp(sum(math.log(pair.gain) for pair in pairs) / max(1, len(pairs)))


def show(way: str, pairs: list[Pair], most: int) -> None:
    moved = [pair for pair in pairs if abs(math.log(pair.gain)) > math.log(1 + NOISE)]
    print(
        f"{way}: {mean_gain(pairs):.2f} times as fast (geometric mean), {len(moved)} of "
        f"{len(pairs)} by more than noise: {mean_gain(moved):.2f}"
    )
    losers = sorted((pair for pair in moved if pair.gain < 1), key=lambda pair: pair.gain)
    for title, listed in (
        ("slower", losers),
        ("faster", sorted(moved, key=lambda pair: -pair.gain)),
        ("least now", sorted(pairs, key=lambda pair: pair.after)),
    ):
        print(f" {title}:", *listed[:most], sep="\n  ")


def main() -> None:
    parser = options_parser(__doc__)
    parser.add_argument("before", metavar="BEFORE.so")
    parser.add_argument("after", metavar="AFTER.so")
    parser.add_argument("--below", type=float, default=0.4, help="of a copy's speed")
    parser.add_argument("--cases", nargs="+", metavar="KIND:SHAPE:HOW")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    torch.manual_seed(options.seed)
    if options.cases:
        compare_cases(options.cases, options.before, options.after)
        return
    pairs: dict[str, list[Pair]] = {"forward": [], "backward": []}
    count = 0
    end = time.monotonic() + options.seconds
    while time.monotonic() < end:
        case, mixture = random_case(rng, NUMBERS), rng.choice(MIXTURES)
        count += 1
        use(options.before)
        before = measure(case, mixture, None)
        if min(before["forward"], before["backward"]) >= options.below:
            continue
        use(options.after)
        after = measure(case, mixture, None)
        text = f"(copy {before['copy']:.0f} us)  {mixture}  {case}"
        for way, found in pairs.items():
            found.append(Pair(before[way], after[way], text))
    name = torch.cuda.get_device_name()
    print(f"{name}, seed {options.seed}, {count} shapes; parts of a copy's speed")
    for way, found in pairs.items():
        show(way, found, options.most)


if __name__ == "__main__":
    main()
