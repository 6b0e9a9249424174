"""What the benchmarks share: where they ran, times taken in turns, CSV files.

A time is a median over rounds. In a round each way runs in its turn, some calls one after the
other with one wait for the device at the end, so that a busy machine slows all ways alike.

Benchmarks can run side by side (run.sh -j): they build, trace and compile beside each other, and
whenever one of them is timed, the others wait. For that, each is started with a shared lock on one
file, and BENCHMARK_LOCK is the number of its descriptor.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import fcntl
import functools
import os
import pathlib
import platform
import random
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import tensorflow as tf

import nv_norms_rewriter

ROOT = pathlib.Path(__file__).resolve().parent.parent


@functools.cache
def has_gpu() -> bool:
    return bool(tf.config.list_physical_devices("GPU"))


@functools.cache
def machine() -> str:
    """The device, by name."""
    if has_gpu():
        device = tf.config.list_physical_devices("GPU")[0]
        return tf.config.experimental.get_device_details(device).get("device_name", "a GPU")
    name = platform.processor() or platform.machine()
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            name = line.partition(":")[2].strip()
            break
    return f"{name}, {os.cpu_count()} cores"


@functools.cache
def commit() -> str:
    """What COMMIT says, or that of the checkout, with a + if it has changes; "" outside of one."""
    if os.environ.get("COMMIT"):
        return os.environ["COMMIT"]
    git = ["git", "-C", str(ROOT)]
    try:
        name = subprocess.check_output([*git, "rev-parse", "--short", "HEAD"], text=True).strip()
        changed = subprocess.check_output(
            [*git, "status", "--porcelain", "--untracked-files=no"], text=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return name + ("+" if changed else "")


def heading() -> str:
    """One line: machine, versions, date, commit."""
    return (
        f"{machine()}; TensorFlow {tf.__version__}, Keras {keras.__version__}; "
        f"{time.strftime('%Y-%m-%d')}; commit {commit() or 'unknown'}"
    )


def parser(description: str) -> argparse.ArgumentParser:
    """Options of every benchmark."""
    options = argparse.ArgumentParser(description=description.partition("\n")[0])
    options.add_argument("--csv", type=pathlib.Path, metavar="FILE", help="append the rows to FILE")
    options.add_argument("--repeat", type=int, help="calls in a round (as many as take 50 ms)")
    options.add_argument("--rounds", type=int, help="GPU: 7, CPU: 5")
    return options


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Inside, no other benchmark of those that run side by side does anything."""
    lock = os.environ.get("BENCHMARK_LOCK")
    if lock:
        fcntl.flock(int(lock), fcntl.LOCK_EX)
    try:
        yield
    finally:
        if lock:
            fcntl.flock(int(lock), fcntl.LOCK_UN)
            time.sleep(0.2)  # those that wait to be timed go before what is built next
            fcntl.flock(int(lock), fcntl.LOCK_SH)


@contextlib.contextmanager
def _nothing_optimized() -> Iterator[None]:
    """Raises if a function is optimized inside.

    tf.random.set_seed has TensorFlow optimize all functions anew, each at its next call: one that
    is to be stock would get fused ops.
    """
    nv_norms_rewriter.clear_report()
    yield
    if nv_norms_rewriter.report():
        graphs = {record.graph for record in nv_norms_rewriter.report()}
        raise RuntimeError(f"optimized while they were timed: {graphs}")


def turns(ways: dict[str, Callable[[], float]], rounds: int | None) -> dict[str, list[float]]:
    """What each way measured in each round, in turns and alone.

    Another order in each round: what comes before a way can make it slower.
    """
    taken: dict[str, list[float]] = {name: [] for name in ways}
    order = random.Random(7)
    with alone(), _nothing_optimized():
        for _ in range(rounds or (7 if has_gpu() else 5)):
            for name in order.sample(list(ways), len(ways)):
                taken[name].append(ways[name]())
    return taken


def times(
    ways: dict[str, Callable[[], Any]], repeat: int | None = None, rounds: int | None = None
) -> dict[str, float]:
    """Milliseconds of one call of each way, in turns; two calls to warm up are not counted."""
    rounds_of: dict[str, Callable[[], float]] = {}
    with _nothing_optimized():
        for name, call in ways.items():
            _milliseconds(call, 1)
            calls = repeat or min(50, max(1, round(50 / _milliseconds(call, 1))))
            rounds_of[name] = functools.partial(settled, call, calls)
    return {name: statistics.median(taken) for name, taken in turns(rounds_of, rounds).items()}


def settled(call: Callable[[], Any], calls: int) -> float:
    """Milliseconds of a call when the same was called before.

    XLA's CUDA graphs hold the addresses of buffers, and are made anew where these have moved, as
    they may when another way has run. A process that runs one model has that once. With two ways
    in turns a diffusion U-Net's step took 6.3 or 7.4 to 7.7 ms, by the process; alone in each of
    six 6.2 to 6.5.
    """
    if has_gpu():
        call()
        _wait()
    return _milliseconds(call, calls)


def _milliseconds(call: Callable[[], Any], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        call()
    _wait()
    return 1e3 * (time.perf_counter() - start) / calls


def _wait() -> None:
    if has_gpu():
        tf.test.experimental.sync_devices()


class _Clock(keras.callbacks.Callback):
    """The time of the steps after the first, the device's work included.

    It has no on_train_batch_end: where a callback has one, Keras waits for each step's loss before
    it begins the next, and does not otherwise.
    """

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if batch == 1:
            _wait()
            self._start = time.perf_counter()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        _wait()
        self.seconds = time.perf_counter() - self._start


def fit_step(model: keras.Model, data: tf.data.Dataset, steps: int) -> float:
    """Milliseconds of a step of model.fit; one step before them is not counted."""
    clock = _Clock()
    model.fit(data, epochs=1, steps_per_epoch=steps + 1, verbose=0, callbacks=[clock])
    return 1e3 * clock.seconds / steps


def peak_bytes(call: Callable[[], Any]) -> int | None:
    """What a call holds at its peak on the GPU beyond what is held before it; None without one."""
    if not has_gpu():
        return None
    _wait()
    tf.config.experimental.reset_memory_stats("GPU:0")
    before = tf.config.experimental.get_memory_info("GPU:0")["current"]
    call()
    _wait()
    return tf.config.experimental.get_memory_info("GPU:0")["peak"] - before


def copy_of(x: tf.Tensor) -> Callable[[], tf.Tensor]:
    """Reads and writes each byte of x once, and nothing else."""
    return tf.function(lambda: tf.raw_ops.DeepCopy(x=x))


def first_call(call: Callable[[], Any], rewriter: bool) -> tuple[int, int]:
    """Runs `call` with or without the rewriter, which decides what it is from now on.

    Returns how many normalizations were fused then, forward and backward.
    """
    nv_norms_rewriter.clear_report()
    if not rewriter:
        with nv_norms_rewriter.disabled():
            call()
        return 0, 0
    call()
    fused = nv_norms_rewriter.report().fused
    return tuple(
        sum(record.direction == direction for record in fused)
        for direction in ("forward", "backward")
    )


def write(path: pathlib.Path | None, benchmark: str, rows: list[dict[str, Any]]) -> None:
    """Appends rows to a CSV file, each with where and when."""
    if path is None:
        return
    where = {
        "benchmark": benchmark,
        "machine": machine(),
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", newline="") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # other benchmarks may add to it, too
        writer = csv.DictWriter(file, [*where, *rows[0]])
        if not os.fstat(file.fileno()).st_size:
            writer.writeheader()
        writer.writerows({**where, **row} for row in rows)
