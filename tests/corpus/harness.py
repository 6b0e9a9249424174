"""Runs a case three times (stock, fused, float64) and says what is wrong with it."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import time
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from .builder import Builder
from .line import BATCH, Case, variable_dtype
from .modes import eager, program
from .values import (
    draw_inputs,
    max_error,
    numpy_dtype,
    rounded_otherwise,
    unit_in_last_place,
)

# How often inputs and weights are moved to see what rounding can do.
_DRAWS = 4
# Outputs of a whole model's training; with so many the mean of their errors says something.
_MANY = 16
# Modes that run the function once and return what it returns.
_PLAIN_MODES = ("infer", "frozen", "session", "saved", "dataset", "cond", "noinline", "nested")


@dataclasses.dataclass
class Outcome:
    """What came of a case. `problems` is empty where all is as expected."""

    name: str
    seed: int
    expected: Mapping[str, int]
    gradients: Mapping[str, int] | None = None
    found: dict[str, int] = dataclasses.field(default_factory=dict)
    backward: dict[str, int] = dataclasses.field(default_factory=dict)
    refusals: list[str] = dataclasses.field(default_factory=list)
    problems: list[str] = dataclasses.field(default_factory=list)
    skipped: str = ""
    error_stock: float = 0.0
    error_fused: float = 0.0
    unit: float = 0.0
    loss: float = 0.0  # of many outputs the mean error, fused by stock
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return not self.problems

    @property
    def both_ways(self) -> bool:
        """As many gradients are fused as forwards, kind by kind, or as the line says."""
        return self.backward == (self.found if self.gradients is None else self.gradients)

    def __str__(self) -> str:
        state = "skipped" if self.skipped else "ok" if self.ok else "FAILED"
        counts = f"expected {_counts(self.expected)}, found {_counts(self.found)}"
        counts += f", backward {_counts(self.backward)}" if self.backward else ""
        lines = [f"{state:8}{self.name}: {counts} ({self.seconds:.2f} s, seed {self.seed})"]
        if self.unit:
            lines.append(
                f"    largest error: stock {self.error_stock / self.unit:.2f}, fused "
                f"{self.error_fused / self.unit:.2f} units in the last place of the largest result"
            )
        if self.loss:
            lines.append(f"    mean error of the outputs: {self.loss:.2f} times stock's")
        lines += [f"    skipped: {self.skipped}"] if self.skipped else []
        lines += [f"    {problem}" for problem in self.problems]
        lines += [f"    refused: {refusal}" for refusal in self.refusals]
        return "\n".join(lines)


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "none"


def missing(case: Case) -> str:
    """Why a case cannot run here, or ""."""
    needs = case.line.needs
    if needs and importlib.util.find_spec(needs) is None:
        return f"needs {needs}, which is not installed"
    return ""


def build_and_run(case: Case, policy: str, inputs: Sequence[np.ndarray], more: Sequence = ()):
    """Outputs for the inputs, and for each further list of inputs (None where TensorFlow fails)."""
    builder = Builder(case.line, policy, case.seed)
    run = program(case.line.make(builder), builder, case.knowledge, case.mode)
    outputs = run(inputs)
    others = []
    for arrays in more:
        try:
            others.append(run(arrays))
        except Exception:  # noqa: BLE001 (what stock TensorFlow cannot run is not ours to judge)
            others.append(None)
    return outputs, others


def reference(case: Case, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The formula in NumPy where the line has one, else TensorFlow's ops one by one in float64."""
    wide = [x if x.dtype.kind in "iu" else x.astype(np.float64) for x in inputs]
    builder = Builder(case.line, "float64", case.seed)
    function = case.line.make(builder)
    if case.line.formula is not None and case.mode in _PLAIN_MODES:
        return [case.line.formula(builder.parameters, *wide)]
    return eager(function, builder, case.mode, wide)


def rounding_noise(case: Case, inputs: Sequence[np.ndarray]) -> list[float]:
    """How far stock's outputs move where its inputs and weights do by a unit in the last place.

    Each op of a network, fused or not, rounds what it gives by about so much, so that the results
    of two right programs may be so far apart, and each so far from float64: for a gradient through
    many layers, or one that is zero because large terms cancel, that is many last places.
    """
    builder = Builder(case.line, case.policy, case.seed)
    run = program(case.line.make(builder), builder, case.knowledge, case.mode)
    still, kept = run(inputs), [variable.numpy() for variable in builder.variables]
    rng = np.random.default_rng(case.seed)
    noise = [0.0] * len(still)
    for _ in range(_DRAWS):
        for variable, value in zip(builder.variables, kept, strict=True):
            variable.assign(rounded_otherwise(rng, value, case.policy))
        moved = run([rounded_otherwise(rng, x, case.policy) for x in inputs])
        noise = [max(n, max_error(m, s)) for n, m, s in zip(noise, moved, still, strict=True)]
    return noise


def _edge_inputs(case: Case, inputs: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
    """An empty batch, and a batch whose first example is NaN, where the case allows them."""
    simple = case.knowledge == BATCH and case.mode == "infer" and case.must_fuse
    # (TensorFlow's fused convolutions give an empty batch the wrong number of channels.)
    simple = simple and not case.line.name.startswith("model.")
    if not simple or any(spec.below is not None for spec in case.line.inputs):
        return []
    poisoned = [x.copy() for x in inputs]
    for x in poisoned:
        x[0] = np.nan
    return [[x[:0] for x in inputs], poisoned]


def check(case: Case, rewriter) -> Outcome:
    """Runs a case; `rewriter` is the package nv_norms_rewriter, or None for stock runs only."""
    outcome = Outcome(case.name, case.seed, case.expect, case.line.gradients, skipped=missing(case))
    if outcome.skipped:
        return outcome
    start = time.perf_counter()
    inputs = draw_inputs(case.line.inputs, case.policy, case.seed)
    edges = _edge_inputs(case, inputs)
    disabled = rewriter.disabled if rewriter else contextlib.nullcontext
    try:
        with disabled():
            want = reference(case, inputs)
            stock = _stock(case, inputs, edges)
            if case.stock_is_wrong and stock is not None:
                outcome.problems += _unless_wrong(stock, want)
            optimized = stock is not None and not case.stock_is_wrong
            if not optimized:
                stock = _op_by_op(case, inputs, edges)
        if rewriter:
            rewriter.clear_report()
            fused = _fused(case, inputs, edges, outcome)
            _read_report(case, rewriter.report(), outcome)
            if fused is not None:
                with disabled():
                    _compare(case, inputs, want, stock, fused, outcome, optimized)
    except Exception as error:  # noqa: BLE001 (any failure is this case's outcome)
        outcome.problems.append(f"{type(error).__name__}: {str(error)[:2000]}")
    outcome.seconds = time.perf_counter() - start
    return outcome


def _stock(case: Case, inputs, edges):
    try:
        return build_and_run(case, case.policy, inputs, edges)
    except Exception as error:
        if case.stock_is_wrong or _lacks_gpu_kernel(error):
            return None
        raise


def _lacks_gpu_kernel(error: Exception) -> bool:
    """TensorFlow's remapper puts ops of oneDNN on GPU nodes, where only ours can run."""
    return "No registered '_Mkl" in str(error) and "for 'GPU' devices" in str(error)


def _unless_wrong(stock, want) -> list[str]:
    """What the line says of TensorFlow is to stay true."""
    for got, exact in zip(stock[0], want, strict=True):
        unit = unit_in_last_place(np.abs(np.float64(exact)).max(initial=0.0), got.dtype)
        if max_error(got, exact) > 100 * unit:
            return []
    return ["TensorFlow is said to be wrong here, and is right"]


def _op_by_op(case: Case, inputs, edges):
    """What stock TensorFlow gives without a graph to optimize."""
    builder = Builder(case.line, case.policy, case.seed)
    function = case.line.make(builder)
    outputs = [eager(function, builder, case.mode, arrays) for arrays in (inputs, *edges)]
    return outputs[0], outputs[1:]


def _fused(case: Case, inputs, edges, outcome: Outcome):
    try:
        return build_and_run(case, case.policy, inputs, edges)
    except Exception as error:  # noqa: BLE001 (any failure is this case's outcome)
        outcome.problems.append(f"fused: {type(error).__name__}: {str(error)[:2000]}")
        return None


def _read_report(case: Case, report, outcome: Outcome) -> None:
    forward = [record for record in report if record.direction == "forward"]
    outcome.found = dict(Counter(record.kind for record in forward if record.fused))
    outcome.backward = dict(
        Counter(r.kind for r in report if r.fused and r.direction == "backward")
    )
    outcome.refusals = [
        f"{record.kind} {record.direction}: {record.reason} ({record.detail})"
        for record in report
        if not record.fused
    ]
    if case.must_fuse:
        outcome.problems += _miscounted(outcome.found, case.expect)
        if case.mode == "train" and not outcome.both_ways:
            wanted = outcome.found if outcome.gradients is None else outcome.gradients
            outcome.problems.append(
                f"expected backward {_counts(wanted)}, found {_counts(outcome.backward)}"
            )
        if case.mode == "train":
            outcome.problems += _incomplete(report, case.outputs)
        outcome.problems += _wrong_fields(case, [record for record in forward if record.fused])
    else:
        backward = sum(record.fused and record.direction == "backward" for record in report)
        if backward and not case.line.allow:
            outcome.problems.append(f"must not be fused: {backward} backward records are")
        if not set(outcome.found) <= set(case.line.allow):
            outcome.problems.append(
                f"must not be fused ({case.line.why}): fused {_counts(outcome.found)}, "
                f"allowed {', '.join(case.line.allow) or 'none'}"
            )


def _miscounted(found: Mapping[str, int], expected: Mapping[str, int]) -> list[str]:
    left = Counter(found)
    for kinds, count in expected.items():
        for kind in kinds.split("/"):
            taken = min(count, left[kind])
            left[kind] -= taken
            count -= taken
        if count:
            return [f"expected {_counts(expected)}, found {_counts(found)}"]
    return [f"expected {_counts(expected)}, found {_counts(found)}"] if +left else []


def _incomplete(report, expected: Sequence[int] | None) -> list[str]:
    """A gradient that lacks dx, dgamma or dbeta leaves the ops in the graph that compute it."""
    given = Counter(len(r.inputs) for r in report if r.fused and r.direction == "forward")
    taken = Counter(len(r.outputs) for r in report if r.fused and r.direction == "backward")
    if (given if expected is None else Counter(expected)) == taken:
        return []
    wanted = f"inputs of the forwards {dict(given)}" if expected is None else list(expected)
    return [f"expected outputs of the gradients: {wanted}, found {dict(taken)}"]


def _wrong_fields(case: Case, fused: Sequence) -> list[str]:
    problems = []
    line = case.line
    rank = len(line.inputs[0].shape)
    for record in fused:
        # Half precision may have rounded it.
        near = 1e-5 if case.policy in ("float32", "float64") else 0.1
        known = line.epsilon is not None
        # A graph in half precision may have no such number: stock adds nothing then, either.
        vanishes = known and not float(
            np.asarray(line.epsilon, numpy_dtype(variable_dtype(case.policy)))
        )
        same = vanishes and record.epsilon == 0
        if known and not same and not np.isclose(record.epsilon, line.epsilon, rtol=near, atol=0):
            problems.append(f"epsilon {record.epsilon}, expected {line.epsilon}")
        if line.axes is not None and record.kind in ("layer_norm", "rms_norm"):
            got, want = {a % rank for a in record.axes}, {a % rank for a in line.axes}
            if got != want:
                problems.append(f"axes {record.axes}, expected {line.axes} of rank {rank}")
    return problems


def _compare(case, inputs, want, stock, fused, outcome: Outcome, optimized: bool = True) -> None:
    """`optimized`: stock's results are those of an optimized graph, not of ops one by one."""
    (results, edges), (stock_results, stock_edges) = fused, stock
    if not outcome.found and optimized:
        for number, (got, same) in enumerate(zip(results, stock_results, strict=True)):
            if got.tobytes() != same.tobytes():
                outcome.problems.append(f"output {number} differs, though nothing was fused")
        return
    # Several norms in a row, or gradients through them, add up: twice the stock error then, or as
    # much more than it as rounding can do.
    noise: list[float] = []
    several = sum(case.expect.values()) != 1 or case.mode not in _PLAIN_MODES
    fused_ops = max(1, sum(outcome.found.values()) + sum(outcome.backward.values()))
    # A gradient that is zero in theory is judged by the size of its neighbours.
    largest = max((np.abs(np.float64(y)).max(initial=0.0) for y in want), default=0.0)
    for number, (got, exact) in enumerate(zip(results, want, strict=True)):
        dtype = got.dtype if got.dtype.kind in "fV" else np.dtype(np.float32)
        size = max(np.abs(np.float64(exact)).max(initial=0.0), 1e-3 * largest)
        unit = unit_in_last_place(size, dtype)
        error = max_error(got, exact)
        base = max_error(stock_results[number], exact)
        if error / unit >= outcome.error_fused / (outcome.unit or unit):
            outcome.error_fused, outcome.error_stock, outcome.unit = error, base, unit
        # Against float64, float64 itself can only be judged up to the rounding of both sums.
        units = 32 if dtype == np.float64 else 2 * fused_ops
        bound = (2 if several else 1) * base + units * unit
        if error > bound and several and optimized:
            noise = noise or rounding_noise(case, inputs)
            bound = max(bound, base + 2 * noise[number])  # an op rounds more than once
        if error > bound:
            outcome.problems.append(
                f"output {number} is {error / unit:.1f} units in the last place of {dtype} away "
                f"from float64, stock {base / unit:.1f}, noise "
                f"{noise[number] / unit if noise else 0:.1f}"
            )
        if got.dtype != stock_results[number].dtype:
            outcome.problems.append(
                f"output {number} is {got.dtype}, stock {stock_results[number].dtype}"
            )
    if several and len(want) >= _MANY:
        outcome.loss = _loss_of_precision(results, stock_results, want)
        if outcome.loss > 2:
            outcome.problems.append(f"a bit is lost: mean error {outcome.loss:.2f} times stock's")
    _compare_edges(edges, stock_edges, outcome)


def _loss_of_precision(fused, stock, want) -> float:
    """Geometric mean over the outputs of their root mean square errors, fused by stock."""
    errors = [
        [np.sqrt(np.mean((np.float64(a) - b) ** 2)) for a, b in zip(outputs, want, strict=True)]
        for outputs in (fused, stock)
    ]
    ratios = [np.log(f / s) for f, s in zip(*errors, strict=True) if f > 0 and s > 0]
    return float(np.exp(np.mean(ratios))) if ratios else 1.0


def _compare_edges(edges, stock_edges, outcome: Outcome) -> None:
    for name, got, same in zip(("empty batch", "NaN"), edges, stock_edges, strict=False):
        if same is None:
            continue
        if got is None:
            outcome.problems.append(f"{name}: fails, stock does not")
            continue
        for a, b in zip(got, same, strict=True):
            if a.shape != b.shape:
                outcome.problems.append(f"{name}: shape {a.shape}, stock {b.shape}")
            elif not np.array_equal(np.isnan(np.float64(a)), np.isnan(np.float64(b))):
                outcome.problems.append(f"{name}: NaN in other places than stock")
