"""Keras' normalizations in functions that XLA compiles for the CPU: XLA's own code against fused.

Usage: python benchmarks/xla_cpu.py [--kinds layer ...] [--shapes 64x256 ...] [--out FILE.csv]

Each case is one layer, bare or between a residual sum and tanh, in one tf.function that is traced
twice: with configure(xla="none") and with configure(xla="all"). The two take turns; medians of
nine. Each line also has the time of x + 1 on the same tensor.
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

SHAPES = {
    "layer": [(64, 64), (512, 768), (4096, 1024), (65536, 64)],
    "rms": [(64, 64), (512, 768), (4096, 1024), (65536, 64)],
    "instance": [(2, 8, 8, 16), (2, 64, 64, 48), (2, 256, 256, 32)],
    "group": [(2, 8, 8, 16), (2, 64, 64, 48), (2, 256, 256, 32)],
}
LAYERS = {
    "layer": keras.layers.LayerNormalization,
    "rms": keras.layers.RMSNormalization,
    "instance": lambda **options: keras.layers.GroupNormalization(groups=-1, **options),
    "group": lambda **options: keras.layers.GroupNormalization(groups=8, **options),
}


def traced(layer: Any, backward: bool, between: bool, given: list[tf.Tensor]) -> Callable[[], Any]:
    @tf.function(jit_compile=True, autograph=False)
    def run(x: tf.Tensor, residual: tf.Tensor, dy: tf.Tensor) -> Any:
        params = [v.value for v in layer.trainable_variables]
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.tanh(layer(x + residual)) if between else layer(x)
        return [y, *tape.gradient(y, [x, *params], output_gradients=dy)] if backward else y

    run(*given)
    return lambda: run(*given)


def milliseconds(call: Callable[[], Any], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return 1e3 * (time.perf_counter() - start) / calls


def measure(kind: str, shape: tuple[int, ...], dtype: str, backward: bool, between: bool) -> dict:
    layer = LAYERS[kind](dtype="float32" if dtype == "float32" else f"mixed_{dtype}")
    layer.build(shape)
    random = np.random.default_rng(7)
    given = [tf.cast(random.normal(size=shape), dtype) for _ in range(3)]
    ways = {}
    for way, choice in (("XLA", "none"), ("fused", "all")):
        nv_norms_rewriter.configure(xla=choice)
        nv_norms_rewriter.clear_report()
        ways[way] = traced(layer, backward, between, given)
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
        "neighbours": "sum, tanh" if between else "",
        **{f"{way} ms": f"{median[way]:.4f}" for way in ways},
        "XLA / fused": f"{median['XLA'] / median['fused']:.2f}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--shapes", nargs="+", type=lambda text: tuple(map(int, text.split("x"))))
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    rows = []
    for kind in options.kinds:
        for case in itertools.product(
            options.shapes or SHAPES[kind], ("float32", "bfloat16"), (False, True), (False, True)
        ):
            rows.append(measure(kind, *case))
            print(*rows[-1].values(), sep=" | ", flush=True)
    if options.out:
        with options.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
