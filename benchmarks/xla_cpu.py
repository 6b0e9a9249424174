"""Keras' normalizations in functions that XLA compiles for the CPU: XLA's own code against fused.

Usage: python benchmarks/xla_cpu.py [--kinds layer ...] [--shapes 64x256 ...] [--out FILE.csv]

`python benchmarks/xla_rule.py cpu FILE.csv` then writes the table by which the rewriter decides.

Each case is one layer, bare, after a residual sum, before tanh or between both, in one tf.function
that is traced twice: with configure(xla="none") and with configure(xla="all"). The two take turns;
medians of nine. Each line also has the time of x + 1 on the same tensor. FILE's old lines stay.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import pathlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import nv_norms_rewriter

# Few and many elements, short and long rows, few and many channels.
ROWS = [(409, 10), (64, 64), (8, 768), (64, 768), (512, 64), (512, 768), (409600, 10), (65536, 64),
        (4096, 1024), (128, 32768), (32768, 768)]  # fmt: skip
IMAGES = [(2, 8, 8, 16), (2, 16, 16, 48), (2, 64, 64, 48), (2, 256, 256, 8), (2, 256, 256, 32)]
SHAPES = {
    "layer": ROWS,
    "rms": ROWS,
    "instance": IMAGES,
    "group 8": IMAGES,
    "instance first": [(n, *rest[-1:], *rest[:-1]) for n, *rest in IMAGES],
    "group 8 first": [(n, *rest[-1:], *rest[:-1]) for n, *rest in IMAGES],
}
PASSES = ("forward", "both")
NEIGHBOURS = ("", "residual", "activation", "both")


def make_layer(kind: str, dtype: str) -> keras.layers.Layer:
    policy = "float32" if dtype == "float32" else f"mixed_{dtype}"
    name, *words = kind.split()  # as in xla_rule.py
    if name == "layer":
        return keras.layers.LayerNormalization(dtype=policy)
    if name == "rms":
        return keras.layers.RMSNormalization(dtype=policy)
    groups = int(words[0]) if name == "group" else -1
    return keras.layers.GroupNormalization(groups, 1 if "first" in words else -1, dtype=policy)


def traced(
    layer: Any, backward: bool, neighbours: str, given: list[tf.Tensor]
) -> Callable[[], Any]:
    @tf.function(jit_compile=True, autograph=False)
    def run(x: tf.Tensor, residual: tf.Tensor, dy: tf.Tensor) -> Any:
        params = [v.value for v in layer.trainable_variables]
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x + residual if neighbours in ("residual", "both") else x)
            if neighbours in ("activation", "both"):
                y = tf.tanh(y)
        return [y, *tape.gradient(y, [x, *params], output_gradients=dy)] if backward else y

    run(*given)
    return lambda: run(*given)


def milliseconds(call: Callable[[], Any], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return 1e3 * (time.perf_counter() - start) / calls


def measure(
    kind: str, shape: tuple[int, ...], dtype: str, backward: bool, neighbours: str
) -> dict[str, str]:
    layer = make_layer(kind, dtype)
    layer.build(shape)
    random = np.random.default_rng(7)
    given = [tf.cast(random.normal(size=shape), dtype) for _ in range(3)]
    ways = {}
    for way, choice in (("XLA", "none"), ("fused", "all")):
        nv_norms_rewriter.configure(xla=choice)
        nv_norms_rewriter.clear_report()
        ways[way] = traced(layer, backward, neighbours, given)
    assert all(record.fused for record in nv_norms_rewriter.report())
    assert len(nv_norms_rewriter.report()) == 1 + backward
    copy = tf.function(lambda x: x + 1, jit_compile=True)
    copy(given[0])
    ways["copy"] = lambda: copy(given[0])
    calls = max(1, min(50, int(10 / max(milliseconds(ways["XLA"], 3), 0.02))))
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(9):
        for way, call in ways.items():
            times[way].append(milliseconds(call, calls))
    median = {way: statistics.median(t) for way, t in times.items()}
    return {
        "kind": kind,
        "shape": " x ".join(map(str, shape)),
        "dtype": dtype,
        "pass": "forward + backward" if backward else "forward",
        "neighbours": neighbours,
        **{f"{way} ms": f"{median[way]:.4f}" for way in ways},
        "XLA / fused": f"{median['XLA'] / median['fused']:.2f}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--shapes", nargs="+", type=lambda text: tuple(map(int, text.split("x"))))
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--passes", nargs="+", default=PASSES, choices=PASSES)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    for kind in options.kinds:
        for case in itertools.product(
            options.shapes or SHAPES[kind], options.dtypes, options.passes, NEIGHBOURS
        ):
            row = measure(kind, case[0], case[1], case[2] == "both", case[3])
            print(*row.values(), sep=" | ", flush=True)
            if options.out is None:
                continue
            is_new = not options.out.exists()
            with options.out.open("a", newline="") as file:
                writer = csv.DictWriter(file, list(row), lineterminator="\n")
                if is_new:
                    writer.writeheader()
                writer.writerow(row)


if __name__ == "__main__":
    main()
