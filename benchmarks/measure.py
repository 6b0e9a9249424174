"""What the benchmarks share: where they ran, times taken in turns, CSV files.

A time is a median over rounds. In a round each way runs in its turn, `repeat` calls one after the
other with one wait for the device at the end, so that a busy machine slows all ways alike.
"""

from __future__ import annotations

import argparse
import csv
import functools
import os
import pathlib
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import tensorflow as tf

import nv_norms_rewriter

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


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
    """Of the checkout, with a + if it has changes; "" outside of one."""
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
    options.add_argument("--repeat", type=int, help="calls in a round (GPU: 20, CPU: 1)")
    options.add_argument("--rounds", type=int, help="GPU: 3, CPU: 5")
    return options


def times(
    ways: dict[str, Callable[[], Any]], repeat: int | None = None, rounds: int | None = None
) -> dict[str, float]:
    """Milliseconds of one call of each way, in turns; two calls to warm up are not counted."""
    repeat = repeat or (20 if has_gpu() else 1)
    rounds = rounds or (3 if has_gpu() else 5)
    for call in ways.values():
        for _ in range(2):
            call()
    _wait()
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, call in ways.items():
            start = time.perf_counter()
            for _ in range(repeat):
                call()
            _wait()
            taken[name].append(1e3 * (time.perf_counter() - start) / repeat)
    return {name: statistics.median(values) for name, values in taken.items()}


def _wait() -> None:
    if has_gpu():
        tf.test.experimental.sync_devices()


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
    new = not path.exists() or not path.stat().st_size
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, [*where, *rows[0]])
        if new:
            writer.writeheader()
        writer.writerows({**where, **row} for row in rows)
