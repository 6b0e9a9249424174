"""Runs Python code in a process of its own: what is tested here happens once per process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ROOT / "python"


def run(
    code: str, *arguments: object, packages: Path = PACKAGES, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs `code` with `packages` on the path; never raises, whatever becomes of the process."""
    clean = {name: value for name, value in os.environ.items() if name != "NV_NORMS_REWRITER"}
    # What else is on the path may be where TensorFlow lies.
    path = os.pathsep.join(filter(None, [str(packages), clean.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**clean, "PYTHONPATH": path, **environment},
    )


def result(
    code: str, *arguments: object, packages: Path = PACKAGES, **environment: str
) -> tuple[Any, str]:
    """Runs `code`, which must succeed; returns its last line of output as JSON, and stderr."""
    process = run(code, *arguments, packages=packages, **environment)
    assert process.returncode == 0, f"exit status {process.returncode}\n{process.stderr}"
    return json.loads(process.stdout.splitlines()[-1]), process.stderr


def copy_package(to: Path, libraries: bool = True) -> Path:
    """A second copy of the package in the folder `to`, which is returned."""
    ignored = ["__pycache__"] if libraries else ["__pycache__", "lib"]
    shutil.copytree(
        PACKAGES / "nv_norms_rewriter",
        to / "nv_norms_rewriter",
        ignore=shutil.ignore_patterns(*ignored),
    )
    return to


# Code for run(): a function that makes a layer norm whose first call TensorFlow optimizes, and one
# that counts the fused ops that it ran with.
NORM = """
import json, sys
import numpy as np
import tensorflow as tf

def norm():
    @tf.function
    def function(x):
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        y = (x - mean) * tf.math.rsqrt(variance + 1e-3) * tf.range(1.0, 9.0)
        return tf.nn.relu(y)
    return function

x = tf.constant(np.random.default_rng(0).normal(2.0, 3.0, (4, 8)), tf.float32)

def right(y):
    value = x.numpy().astype(np.float64)
    centred = value - value.mean(-1, keepdims=True)
    exact = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-3) * np.arange(1.0, 9.0)
    return bool(np.allclose(y, np.maximum(exact, 0), 1e-5, 1e-5))
"""
