"""Norms of random shapes, for cpu_hunt.py, gpu_hunt.py and compare.py.

Lists of models have few of the shapes that a kernel may meet; a cut that is made for some may be
a hundred times slower for others.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Sequence
from typing import Any, NamedTuple


class Case(NamedTuple):
    """What is normalized: the kernels' arguments, and how many statistics and parameters it has."""

    kind: str
    shape: tuple[int, ...]
    settings: dict[str, Any]
    statistics: int
    params: int

    def __str__(self) -> str:
        return f"{self.kind} {'x'.join(map(str, self.shape))} {self.settings}"


def random_shape(rng: random.Random, numbers: int) -> tuple[int, ...]:
    """Two to four dimensions of all sizes, most of them a multiple of 8; an eighth to all of it."""
    rank = rng.choice([2, 3, 3, 4])
    left = int(numbers * 2 ** rng.uniform(-3, -0.1))
    sizes = []
    for i in range(rank - 1):
        size = int(2 ** rng.uniform(0, 1.7 * math.log2(max(2, left)) / (rank - i)))
        size = min(size, left)
        if size > 8 and rng.random() < 0.7:
            size -= size % 8
        sizes.append(size)
        left = max(1, left // size)
    sizes.append(left)
    rng.shuffle(sizes)
    return tuple(sizes)


def layer_case(kind: str, shape: tuple[int, ...], axes: list[int]) -> Case:
    """A layer or RMS norm over these axes."""
    params = math.prod(shape[a] for a in axes)
    settings = {"axis": axes, "formula": "rms" if kind == "rms" else "center"}
    return Case(kind, shape, settings, math.prod(shape) // params, params)


def channels_of(shape: tuple[int, ...], last: bool) -> int:
    return shape[-1 if last else 1]


def group_case(kind: str, shape: tuple[int, ...], groups: int, last: bool) -> Case:
    """An instance or group norm."""
    settings = {"groups": groups, "channels_last": last}
    return Case(kind, shape, settings, shape[0] * groups, channels_of(shape, last))


def random_case(rng: random.Random, numbers: int) -> Case:
    """A layer, RMS, instance or group norm of at most so many numbers."""
    kind = rng.choice(["layer", "rms", "instance", "group", "group"])
    shape = random_shape(rng, numbers)
    if kind in ("layer", "rms"):
        axes = [len(shape) - 1]
        if rng.random() < 0.5:
            count = min(rng.choice([1, 1, 1, 2]), len(shape) - 1)
            axes = sorted(rng.sample(range(len(shape)), count))
        return layer_case(kind, shape, axes)
    last = rng.random() < 0.5
    groups = channels = channels_of(shape, last)
    if kind == "group":
        groups = rng.choice([g for g in range(1, min(channels, 64) + 1) if channels % g == 0])
    return group_case(kind, shape, groups, last)


def options_parser(doc: str) -> argparse.ArgumentParser:
    """Of the command line: seconds, seed and most."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most", type=int, default=30, help="lines for each of the two ways")
    return parser


def show_farthest(
    found: Sequence[tuple[str, dict[str, float]]], most: int, form: str, largest: bool, word: str
) -> None:
    """Prints of each way the geometric mean and the `most` largest (or least) of its numbers.

    found: what was measured, and "forward" and "backward" of it, to be printed by `form`.
    """
    for way in ("forward", "backward"):
        mean = math.exp(sum(math.log(numbers[way]) for _, numbers in found) / len(found))
        print(f"{way}: geometric mean {mean:.2f}, {word}:")
        in_order = sorted(found, key=lambda one: one[1][way], reverse=largest)
        for text, numbers in in_order[:most]:
            print(f"{numbers[way]:{form}} {text}")
