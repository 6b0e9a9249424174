"""Runs Python code in a process of its own: what is tested here happens once per process."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import types
from multiprocessing import reduction
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ROOT / "python"


# A fork of a process that has imported TensorFlow, and done nothing else, starts ten times as fast.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tensorflow"])
# What TensorFlow does not read when it is imported.
_READ_LATER = ("NV_NORMS_", "CUDA_VISIBLE_DEVICES", "XLA_FLAGS", "TF_XLA_FLAGS")
_SECONDS = 300


def variables_for(packages: Path = PACKAGES) -> dict[str, str]:
    """The environment of a process that finds `packages`, with the rewriter on."""
    clean = {name: value for name, value in os.environ.items() if name != "NV_NORMS_REWRITER"}
    # What else is on the path may be where TensorFlow lies.
    path = os.pathsep.join(filter(None, [str(packages), clean.get("PYTHONPATH")]))
    return {**clean, "PYTHONPATH": path}


def run(
    code: str,
    *arguments: object,
    packages: Path = PACKAGES,
    fork: bool = True,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Runs `code` with `packages` on the path; never raises, whatever becomes of the process.

    Without `fork`, or with variables that TensorFlow may read when it is imported, the process is
    an interpreter that has imported nothing.
    """
    variables = {**variables_for(packages), **environment}
    command = ["-c", *map(str, arguments)]
    code = textwrap.dedent(code)
    if fork and all(name.startswith(_READ_LATER) for name in environment):
        return _forked(code, command, variables)
    return subprocess.run(
        [sys.executable, command[0], code, *command[1:]],
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        env=variables,
    )


def run_program(
    path: str, *arguments: object, fork: bool = True, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs the Python program at `path`, below the project's root, from there; as `run` does."""
    variables = {**variables_for(), **environment}
    command = [path, *map(str, arguments)]
    if fork:
        return _forked((ROOT / path).read_text(), command, variables)
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        env=variables,
    )


def run_pytest(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs pytest from the project's root, with settings that hold from a process' start."""
    code = f"""
import os, sys, pytest
os.chdir({str(ROOT)!r})
os.environ.update({environment!r})
sys.exit(pytest.main(sys.argv[1:]))
"""
    return run(code, *arguments)


def _forked(
    code: str, command: list[str], variables: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        files = [reduction.DupFd(file.fileno()) for file in (output, errors)]
        process = _FORKS.Process(target=_main, args=(code, command, variables, files))
        process.start()
        process.join(_SECONDS)
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired(command, _SECONDS)
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(command, process.exitcode, output.read(), errors.read())


def _main(code: str, command: list[str], variables: dict[str, str], files: list[Any]) -> None:
    """What the fork runs: as `python` with this command would, but that TensorFlow is imported."""
    for number, file in enumerate(files, start=1):
        os.dup2(file.detach(), number)
    os.environ.clear()
    os.environ.update(variables)
    # Without what pytest has put there: "pythonpath" of pyproject.toml, the tests' folders.
    ours = ("python", "tests", "benchmarks")
    others = [p for p in sys.path if not any(Path(p).is_relative_to(ROOT / of) for of in ours)]
    sys.path[:] = ["", *variables["PYTHONPATH"].split(os.pathsep), *others]
    sys.argv[:] = command
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    is_program = command[0] != "-c"
    if is_program:
        os.chdir(ROOT)
        module.__file__ = command[0]
        sys.path[0] = str((ROOT / command[0]).parent)
    exec(compile(code, command[0] if is_program else "<string>", "exec"), module.__dict__)


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
