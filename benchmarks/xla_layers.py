"""Single normalizations inside functions that XLA compiles: XLA's own code against the fused ops.

Usage: python benchmarks/xla_layers.py [--what seeds groups neighbours] [--out FILE] [--small]

Each case is one tf.function(jit_compile=True), written with Keras' layer or with the fused op, that
takes x (and the gradient dy of its result) and gives y (and dx, dgamma, dbeta). Calls are queued,
so that the time of one is that of the GPU, unless the host is slower. Where x is small, a function
holds several independent copies of the case, and the time is that of one. The two ways take turns;
medians. The copy is x + 1 in XLA: one read and one write of x.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import functools
import pathlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from nv_norms_rewriter import _library

ROWS = [(10**n, 10 ** (8 - n)) for n in range(1, 8)]
VOLUMES = [(2, 128, 128, 128, 32), (4, 64, 64, 64, 64), (8, 64, 64, 64, 128), (8, 32, 32, 32, 256)]
UNET = [(2, 96, 96, 96, 32), (2, 48, 48, 48, 64), (2, 24, 24, 24, 128), (2, 12, 12, 12, 256)]
# BERT-base 32 x 512; ConvNeXtTiny's first and last stage at 64 images; a wide decoder.
MODELS = [(16384, 768), (200704, 96), (3136, 768), (8192, 4096)]


@dataclasses.dataclass(frozen=True)
class Case:
    """kind: "layer" or "instance"; neighbours: of "", "residual", "activation", "both"."""

    kind: str
    shape: tuple[int, ...]
    dtype: str
    backward: bool
    neighbours: str = ""
    copies: int = 1


def cases(what: str, small: bool) -> list[Case]:
    """small: the same with tensors that a CPU manages, to see that it runs."""
    types = ("float32", "bfloat16")
    found = []
    for backward in (True, False):
        if what == "seeds":
            found += [Case("layer", s, t, backward) for t in types for s in ROWS]
        if what == "groups":
            found += [Case("instance", s, t, backward) for t in types for s in VOLUMES]
        if what == "neighbours":
            for near in ("", "residual", "activation", "both"):
                found += [Case("layer", s, "bfloat16", backward, near) for s in MODELS]
                found += [Case("layer", s, "float32", backward, near) for s in MODELS[:2]]
            for near in ("", "activation"):
                found += [Case("instance", s, "bfloat16", backward, near) for s in UNET]
                found += [Case("instance", s, "float32", backward, near) for s in UNET[:1]]
    if small:
        found = [dataclasses.replace(c, shape=tuple(min(n, 6) for n in c.shape)) for c in found]
    return [dataclasses.replace(c, copies=copies(c)) for c in found]


def copies(case: Case) -> int:
    """Enough that the GPU has more to do than the host."""
    return max(1, min(12, 100_000_000 // tf.TensorShape(case.shape).num_elements()))


def normalize(case: Case, way: str) -> tuple[Callable[..., tf.Tensor], list[tf.Variable]]:
    """The normalization as a function, and its parameters."""
    policy = "float32" if case.dtype == "float32" else f"mixed_{case.dtype}"
    if case.kind == "layer":
        layer = keras.layers.LayerNormalization(dtype=policy)
    else:
        layer = keras.layers.GroupNormalization(groups=-1, dtype=policy)
    layer.build(case.shape)
    if way == "XLA":
        return layer, [v.value for v in layer.trainable_variables]
    params = [v.value for v in layer.trainable_variables]  # gamma, beta
    op = getattr(_library.ops(), f"fused_{case.kind}_norm")

    def fused(x: tf.Tensor) -> tf.Tensor:
        return op(x=x, scale=params[:1], offset=params[1:], out_type=x.dtype)[0]

    return fused, params


def function(case: Case, way: str) -> Callable[[Any], Any]:
    """A compiled function of a list with the inputs of each copy."""
    norms = [normalize(case, way) for _ in range(case.copies)]

    def forward(norm: Callable[..., tf.Tensor], given: list[tf.Tensor]) -> tf.Tensor:
        x = given[0] + given[1] if case.neighbours in ("residual", "both") else given[0]
        y = norm(x)
        if case.neighbours in ("activation", "both"):
            y = tf.nn.gelu(y) if case.kind == "layer" else tf.nn.leaky_relu(y)
        return y

    @tf.function(jit_compile=True, autograph=False)
    def run(inputs: list[list[tf.Tensor]]) -> Any:
        results = []
        for (norm, params), (*given, dy) in zip(norms, inputs, strict=True):
            if not case.backward:
                results.append(forward(norm, given))
                continue
            with tf.GradientTape() as tape:
                tape.watch(given)
                y = forward(norm, given)
            wanted = [given[0], *params]
            results.append([y, *tape.gradient(y, wanted, output_gradients=dy)])
        return results

    return run


@functools.lru_cache(maxsize=16)
def inputs(shape: tuple[int, ...], dtype: str, count: int) -> list[list[tf.Tensor]]:
    """x, another x and dy for each copy."""
    random = tf.random.Generator.from_seed(7)
    return [[tf.cast(random.normal(shape), dtype) for _ in range(3)] for _ in range(count)]


def arguments(case: Case) -> list[list[tf.Tensor]]:
    return inputs(case.shape, case.dtype, case.copies)


def sync() -> None:
    tf.test.experimental.sync_devices()


def once(run: Callable[[Any], Any], given: Any, calls: int) -> float:
    """Milliseconds of a call, when calls queue."""
    sync()
    start = time.perf_counter()
    for _ in range(calls):
        run(given)
    sync()
    return 1e3 * (time.perf_counter() - start) / calls


def measure(case: Case, run: dict[str, Callable[[Any], Any]]) -> dict[str, float]:
    given = arguments(case)
    copy = tf.function(lambda inputs: [x + 1 for x, *_ in inputs], jit_compile=True)
    run = {**run, "copy": copy}
    for way in run.values():
        once(way, given, 2)
    calls = max(4, min(40, int(20 / max(once(run["XLA"], given, 3), 0.05))))
    times: dict[str, list[float]] = {way: [] for way in run}
    for _ in range(7):
        for way in run:
            times[way].append(once(run[way], given, calls))
    return {
        **{way: statistics.median(t) / case.copies for way, t in times.items()},
        "spread": max((max(t) - min(t)) / statistics.median(t) for t in list(times.values())[:2]),
    }


def check(case: Case, run: dict[str, Callable[[Any], Any]]) -> float:
    """The largest difference between the two ways, as a part of the largest value."""
    given = arguments(case)
    worst = 0.0
    pairs = zip(*(tf.nest.flatten(run[way](given)[0]) for way in run), strict=True)
    for stock, ours in pairs:
        stock, ours = tf.cast(stock, tf.float32), tf.cast(ours, tf.float32)
        largest = tf.reduce_max(tf.abs(stock)) + 1e-30
        worst = max(worst, float(tf.reduce_max(tf.abs(stock - ours)) / largest))
    return worst


def bytes_of(case: Case) -> int:
    """What has to move at least: forward x, y, and the residual; backward dy, x, dx."""
    tensors = (2 + (case.neighbours in ("residual", "both"))) + (3 if case.backward else 0)
    return tensors * tf.TensorShape(case.shape).num_elements() * tf.as_dtype(case.dtype).size


def warm(case: Case) -> dict[str, Callable[[Any], Any]]:
    run = {way: function(case, way) for way in ("XLA", "fused")}
    specs = [[tf.TensorSpec(case.shape, case.dtype)] * 3 for _ in range(case.copies)]
    # Keras cannot be traced in several threads at once, so that is done here.
    return {way: traced.get_concrete_function(specs) for way, traced in run.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--what", nargs="+", default=["seeds", "groups", "neighbours"])
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after so long")
    options = parser.parse_args()
    start = time.perf_counter()
    lines = [
        "| kind | shape | dtype | | neighbours | XLA ms | fused ms | XLA / fused | copy ms "
        "| fused GB/s | spread | apart |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    todo = [case for what in options.what for case in cases(what, options.small)]
    todo.sort(key=lambda c: not c.backward)
    # XLA compiles for seconds: the next cases' functions while one is measured would disturb it, so
    # a batch is compiled on all cores, then measured alone.
    for first in range(0, len(todo), 16):
        batch = todo[first : first + 16]
        runs = [warm(case) for case in batch]

        def compile_now(pair: tuple[Case, dict[str, Any]]) -> float:
            try:
                return check(*pair)
            except tf.errors.OpError as error:  # the other cases are worth having
                print(f"{pair[0]}: {error.message}")
                return float("nan")

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            apart = list(pool.map(compile_now, zip(batch, runs, strict=True)))
        sync()
        for case, run, difference in zip(batch, runs, apart, strict=True):
            if difference != difference:
                continue
            if time.perf_counter() - start > options.seconds:
                break
            ms = measure(case, run)
            lines.append(
                f"| {case.kind} | {' x '.join(map(str, case.shape))} | {case.dtype} "
                f"| {'forward + backward' if case.backward else 'forward'} | {case.neighbours} "
                f"| {ms['XLA']:.4f} | {ms['fused']:.4f} | {ms['XLA'] / ms['fused']:.2f} "
                f"| {ms['copy']:.4f} | {bytes_of(case) / ms['fused'] / 1e6:.0f} "
                f"| {100 * ms['spread']:.0f} % | {difference:.1e} |"
            )
            print(lines[-1], flush=True)
            if options.out:
                options.out.write_text("\n".join(lines) + "\n")
        del runs
    print(f"{len(lines) - 2} cases in {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
