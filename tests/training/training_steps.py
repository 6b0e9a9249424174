"""Runs a training step stock and fused in one process, and compares both with float64."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

import nv_norms_rewriter
from stock import stock

Arrays = Sequence[np.ndarray]
Step = Callable[..., object]


def flat(outputs: object) -> list[np.ndarray]:
    """The outputs as arrays."""
    return [np.asarray(tf.convert_to_tensor(tensor)) for tensor in tf.nest.flatten(outputs)]


def run_both(make: Callable[[], Step], arrays: Arrays):
    """Outputs of a step that ran stock, of one traced and run fused, and the report.

    make() returns a new tf.function each time: what is optimized once stays as it is.
    """
    tensors = [tf.constant(array) for array in arrays]
    outputs = stock(lambda: flat(make()(*tensors)))
    nv_norms_rewriter.clear_report()
    fused = flat(make()(*tensors))
    return outputs, fused, nv_norms_rewriter.report()


def counts(report: nv_norms_rewriter.Report, direction: str) -> dict[str, int]:
    """What was fused in that direction, by kind."""
    return dict(Counter(r.kind for r in report if r.fused and r.direction == direction))


def left(report: nv_norms_rewriter.Report) -> dict[str, int]:
    """What was found and not fused, by reason."""
    return dict(Counter(f"{r.direction}: {r.reason}" for r in report if not r.fused))


def assert_counts(
    report: nv_norms_rewriter.Report,
    forward: Mapping[str, int],
    backward: Mapping[str, int],
    refused: Mapping[str, int] | None = None,
) -> None:
    """The report says exactly this."""
    got = (counts(report, "forward"), counts(report, "backward"), left(report))
    assert got == (dict(forward), dict(backward), dict(refused or {})), f"\n{report}"


def assert_as_close_as_stock(
    stock: Arrays, fused: Arrays, exact: Arrays, units: float = 8.0, dtype: type = np.float32
) -> None:
    """Each fused output is as close to float64 as stock is, up to some units in the last place.

    A unit is that of the largest element of the output in `dtype`, the type in which the step
    computes: sums over a few dozen elements of that size are off by a few of them. The formula
    itself is checked too: stock may not be off by more than 64 units.
    """
    assert len(stock) == len(fused) == len(exact)
    for number, (s, f, e) in enumerate(zip(stock, fused, exact, strict=True)):
        assert s.shape == f.shape == e.shape, f"output {number}: {s.shape} {f.shape} {e.shape}"
        assert s.dtype == f.dtype, f"output {number}: {s.dtype} {f.dtype}"
        assert np.isfinite(np.float64(f)).all(), f"output {number} is not finite"
        unit = float(np.finfo(dtype).eps) * max(np.abs(e).max(initial=0.0), 1e-3)
        off_stock = np.abs(np.float64(s) - e).max(initial=0.0)
        off_fused = np.abs(np.float64(f) - e).max(initial=0.0)
        assert off_stock <= 64 * unit, f"output {number}: stock is {off_stock / unit:.1f} units off"
        assert off_fused <= off_stock + units * unit, (
            f"output {number}: fused is {off_fused / unit:.1f} units off, "
            f"stock {off_stock / unit:.1f}"
        )


def step_of(
    function: Callable[[tf.Tensor], tf.Tensor],
    variables: Sequence[tf.Variable],
    x: np.ndarray,
    dy: np.ndarray,
    known: str = "batch",
) -> Callable[[], Step]:
    """For `check`: y = function(x), and from dy the gradients of x and of the variables."""

    def make():
        @tf.function(input_signature=[spec(x, known), spec(dy, known)])
        def step(x, dy):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = function(x)
            return y, tape.gradient(y, [x, *variables], dy)

        return step

    return make


def check(
    make: Callable[[], Step],
    arrays: Arrays,
    exact: Arrays,
    forward: Mapping[str, int],
    backward: Mapping[str, int],
    refused: Mapping[str, int] | None = None,
    **options,
) -> None:
    """Counts and values of a step both ways."""
    outputs, fused, report = run_both(make, arrays)
    assert_as_close_as_stock(outputs, fused, [np.float64(e) for e in exact], **options)
    assert_counts(report, forward, backward, refused)


def normal(rng: np.random.Generator, *shape: int, mean: float = 0.0) -> np.ndarray:
    """Normally distributed float32."""
    return rng.normal(mean, 1.0, shape).astype(np.float32)


def spec(array: np.ndarray, known: str = "batch") -> tf.TensorSpec:
    """What the step knows: "static" all sizes, "batch" all but the first's, "channels" the last."""
    shape: list[int | None] = list(array.shape)
    if known != "static":
        shape[0] = None
    if known == "channels":
        shape[1:-1] = [None] * (len(shape) - 2)
    return tf.TensorSpec(shape, array.dtype)
