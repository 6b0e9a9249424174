"""Single normalizations inside functions that XLA compiles: XLA's own code against the fused ops.

Usage: python benchmarks/xla_layers.py [--what seeds groups sums] [--kinds "group 32"]
       [--part 1/4] [--seconds N] [--out FILE]

`python benchmarks/xla_rule.py gpu FILE` then writes the table by which the rewriter decides.

Each case is one tf.function(jit_compile=True) with a chain of Keras layers, as in a model: all
forwards, then, for cases with a gradient, all backwards. Barriers keep XLA from fusing one link
with the next, so that a link is what lies between two matrix products or convolutions. A chain is
long enough that the GPU, not the host, sets the time, which is given for one link. The two ways
take turns; medians. The copy is a chain of x + 1: one read and one write of x. All functions are
traced and compiled first, then measured one by one; --seconds cuts the list of cases. Parts of it
can run side by side, as other benchmarks do (measure.py).
"""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
import math
import pathlib
import re
import statistics
import time
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from measure import alone, settled
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from xla_cases import WHAT, Case, cases

import nv_norms_rewriter


@tf.custom_gradient
def barriers(*tensors: tf.Tensor) -> Any:
    """Each, and its gradient, in a place of its own in memory."""
    barrier = gen_xla_ops.xla_optimization_barrier
    return barrier(tensors), lambda *gradients: barrier(gradients)


def barrier(x: tf.Tensor) -> tf.Tensor:
    return barriers(x)[0]


def beside(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """x, plus what two matrix products would make of y, the norm of x, as transformers have it."""
    left, right = barriers(y, y)
    return x + left + right


def rotated(x: tf.Tensor) -> tf.Tensor:
    """Each row turned as rotary position embeddings turn it (Su et al., 2021), by one position."""
    left, right = tf.split(x, 2, axis=-1)
    angles = tf.exp(-tf.cast(tf.range(x.shape[-1] // 2), tf.float32) / 8)
    angles = tf.cast(tf.concat([angles, angles], axis=-1), x.dtype)
    return x * tf.cos(angles) + tf.concat([-right, left], axis=-1) * tf.sin(angles)


def in_windows(x: tf.Tensor) -> tf.Tensor:
    """Rows of images of 8 x 64, one image after another, in windows of 8 x 8."""
    rows, columns = x.shape
    images = tf.reshape(x, [-1, 8, 8, 8, columns])
    return tf.reshape(tf.transpose(images, [0, 2, 1, 3, 4]), [rows, columns])


def make_layer(case: Case) -> keras.layers.Layer:
    policy = "float32" if case.dtype == "float32" else f"mixed_{case.dtype}"
    kind, *words = case.kind.split()
    if kind == "layer":
        layer = keras.layers.LayerNormalization(dtype=policy)
    elif kind == "rms":
        layer = keras.layers.RMSNormalization(dtype=policy)
    else:
        groups = int(words[0]) if kind == "group" else -1
        axis = 1 if "first" in words else -1
        layer = keras.layers.GroupNormalization(groups, axis, dtype=policy)
    layer.build(case.shape)
    return layer


def has_residual(case: Case) -> bool:
    return case.neighbours.partition(" ")[0] in ("residual", "both")


def has_sum(case: Case) -> bool:
    return case.neighbours.endswith("sum")


def function(case: Case) -> Callable[..., Any]:
    """A compiled function of x, a residual and the gradient of the result.

    The gradient is what is added to y, too, as the residual would be read once for both.
    """
    layers = [make_layer(case) for _ in range(case.links)]
    params = [v.value for layer in layers for v in layer.trainable_variables]

    def chain(x: tf.Tensor, residual: tf.Tensor, summand: tf.Tensor) -> tf.Tensor:
        for layer in layers:
            x = x + residual if has_residual(case) else x
            if case.neighbours == "skip":
                x = beside(x, layer(x))
                continue
            x = layer(x)
            x = x + summand if has_sum(case) else x
            if case.neighbours.endswith("silu inside"):
                x = tf.nn.silu(x)
            elif case.neighbours.endswith("inside"):
                x = tf.nn.leaky_relu(x, 0.01)
            elif case.neighbours in ("activation", "both"):
                x = tf.nn.gelu(x)
            elif case.neighbours == "parts":
                x = rotated(x)
            elif case.neighbours == "moved":
                x = in_windows(x)
            elif case.neighbours == "squeezed":
                axes = list(range(1, len(x.shape) - 1))
                x = x * tf.sigmoid(tf.reduce_mean(x, axes, keepdims=True))
            x = barrier(x)
        return x

    @tf.function(jit_compile=True, autograph=False)
    def run(x: tf.Tensor, residual: tf.Tensor, dy: tf.Tensor) -> Any:
        if not case.backward:
            return chain(x, residual, dy)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = chain(x, residual, dy)
        return [y, *tape.gradient(y, [x, *params], output_gradients=dy)]

    return run


@functools.lru_cache(maxsize=16)
def inputs(shape: tuple[int, ...], dtype: str) -> list[tf.Tensor]:
    random = tf.random.Generator.from_seed(7)
    return [tf.cast(random.normal(shape), dtype) for _ in range(3)]


def arguments(case: Case) -> list[tf.Tensor]:
    return inputs(case.shape, case.dtype)


def once(run: Callable[..., Any], given: list[tf.Tensor], calls: int) -> float:
    """Milliseconds of a call, when calls queue."""
    return settled(functools.partial(run, *given), calls)


@functools.cache
def copy_of(links: int) -> Callable[..., Any]:
    @tf.function(jit_compile=True, autograph=False)
    def copy(x: tf.Tensor, *unused: tf.Tensor) -> tf.Tensor:
        for _ in range(links):
            x = barrier(x + 1)
        return x

    return copy


def measure(case: Case, run: dict[str, Callable[..., Any]]) -> dict[str, float]:
    given = arguments(case)
    run = {**run, "copy": copy_of(case.links)}
    for way in run.values():
        once(way, given, 2)
    calls = max(3, min(40, int(10 / max(once(run["XLA"], given, 3), 0.05))))
    times: dict[str, list[float]] = {way: [] for way in run}
    for _ in range(7):
        for way in run:
            times[way].append(once(run[way], given, calls))
    return {
        **{way: statistics.median(t) / case.links for way, t in times.items()},
        "spread": max((max(t) - min(t)) / statistics.median(t) for t in list(times.values())[:2]),
    }


def check(case: Case, run: dict[str, Callable[..., Any]]) -> float:
    """The largest difference between the two ways, as a part of the largest value.

    Of all tensors of a shape: behind a norm's gradient the one before it has parameters' gradients
    that are roundings.
    """
    given = arguments(case)
    copy_of(case.links)(*given)
    largest: dict[tuple[int, ...], float] = {}
    apart: dict[tuple[int, ...], float] = {}
    pairs = zip(*(tf.nest.flatten(run[way](*given)) for way in run), strict=True)
    for stock, ours in pairs:
        shape = tuple(stock.shape)
        stock, ours = tf.cast(stock, tf.float32), tf.cast(ours, tf.float32)
        for kept, values in ((largest, stock), (apart, stock - ours)):
            kept[shape] = max(kept.get(shape, 0.0), float(tf.reduce_max(tf.abs(values))))
    return max(apart[shape] / (largest[shape] + 1e-30) for shape in largest)


def bytes_of(case: Case) -> int:
    """What has to move at least: forward x, y, what is added; backward dy, x, dx."""
    tensors = 2 + has_residual(case) + has_sum(case) + (3 if case.backward else 0)
    if case.neighbours == "skip":  # with two more that make x, and two more gradients
        tensors = 10 if case.backward else 5
    return tensors * tf.TensorShape(case.shape).num_elements() * tf.as_dtype(case.dtype).size


def trace(case: Case) -> dict[str, Callable[..., Any]]:
    """Both ways, traced: Keras cannot be traced in several threads at once."""
    found = {}
    for way, option in (("XLA", "none"), ("fused", "all")):
        nv_norms_rewriter.configure(xla=option)
        nv_norms_rewriter.clear_report()
        specs = [tf.TensorSpec(case.shape, case.dtype)] * 3
        found[way] = function(case).get_concrete_function(*specs)
        activated = activated_in(found[way].graph)
        expected = (2 if case.backward else 1) * case.links if way == "fused" else 0
        if len(activated) != expected:
            print(f"{case}, {way}: {len(activated)} of {expected} normalizations fused")
        inside = sum(activated)
        expected *= case.neighbours.endswith("inside")
        if inside != expected and tf.config.list_logical_devices("GPU"):
            print(f"{case}, {way}: {inside} of {expected} activations inside")
    return found


def activated_in(graph: Any) -> list[bool]:
    """Whether there is an activation in each fused op of a graph."""
    fused = [op for op in graph.get_operations() if re.fullmatch(r"Fused\w+Norm(Grad)?", op.type)]
    attributes = [op.node_def.attr for op in fused]
    return [
        "negative_slope" in attr and (attr["negative_slope"].f != 1 or attr["silu"].b)
        for attr in attributes
    ]


def line_of(case: Case, ms: dict[str, float], apart: float) -> str:
    return (
        f"| {case.kind} | {' x '.join(map(str, case.shape))} | {case.dtype} "
        f"| {'forward + backward' if case.backward else 'forward'} | {case.neighbours} "
        f"| {ms['XLA']:.4f} | {ms['fused']:.4f} | {ms['XLA'] / ms['fused']:.2f} "
        f"| {ms['copy']:.4f} | {bytes_of(case) / ms['fused'] / 1e6:.0f} "
        f"| {100 * ms['spread']:.0f} % | {apart:.1e} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--what", nargs="+", default=list(WHAT), choices=WHAT)
    parser.add_argument("--kinds", nargs="+", help='of these only: "layer", "group 32 first", ...')
    parser.add_argument("--part", default="1/1", help="the second of three parts: 2/3")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--quick", action="store_true", help="tiny tensors, to see that it runs")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after so long")
    options = parser.parse_args()
    start = time.perf_counter()
    lines = [
        "| kind | shape | dtype | | neighbours | XLA ms | fused ms | XLA / fused | copy ms "
        "| fused GB/s | spread | apart |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    todo = [case for what in options.what for case in cases(what, options.quick)]
    todo = [case for case in todo if not options.kinds or case.kind in options.kinds]
    # What is cut at the end is what matters least.
    todo.sort(key=lambda c: (not c.backward, c.neighbours != ""))
    part, parts = map(int, options.part.split("/"))
    todo = list(dict.fromkeys(todo))[part - 1 :: parts]

    def compile_now(case: Case, run: dict[str, Callable[..., Any]]) -> float:
        try:
            return check(case, run)
        except tf.errors.OpError as error:  # the other cases are worth having
            print(f"{case}: {error.message}")
            return float("nan")

    # XLA compiles for seconds, on all cores, and while it does nothing can be measured.
    waiting = []
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for case in todo:
            if time.perf_counter() - start > 0.55 * options.seconds:
                break
            run = trace(case)
            waiting.append((case, run, pool.submit(compile_now, case, run)))
        rest = 0.65 * options.seconds - (time.perf_counter() - start)
        concurrent.futures.wait([compiled for *_, compiled in waiting], max(0.0, rest))
        pool.shutdown(cancel_futures=True)
    tf.test.experimental.sync_devices()
    print(f"{len(waiting)} of {len(todo)} compiled in {time.perf_counter() - start:.0f} s")
    with alone():
        for case, run, compiled in waiting:
            if time.perf_counter() - start > options.seconds:
                break
            if compiled.cancelled() or math.isnan(compiled.result()):
                continue
            lines.append(line_of(case, measure(case, run), compiled.result()))
            print(lines[-1], flush=True)
            if options.out:
                options.out.write_text("\n".join(lines) + "\n")
    print(f"{len(lines) - 2} of {len(todo)} cases in {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
