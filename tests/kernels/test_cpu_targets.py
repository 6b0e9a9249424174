"""The ops' tests on the CPU with each instruction set that their kernels are compiled for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run_ops_tests(target: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"NV_NORMS_CPU_TARGET": target, "CUDA_VISIBLE_DEVICES": ""}
    files = ["tests/ops/test_forward.py", "tests/ops/test_gradient.py"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-m", "not gpu and not slow", *files],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )


# The widest one runs in tests/ops itself.
@pytest.mark.parametrize("target", ["baseline", "avx2"])
def test_the_ops_with_a_forced_target(target: str) -> None:
    if target == "avx2" and "avx2" not in Path("/proc/cpuinfo").read_text().split():
        pytest.skip("this CPU has no AVX2")
    result = run_ops_tests(target)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-1000:]
    assert " passed" in result.stdout


def test_a_target_that_does_not_exist_is_an_error() -> None:
    result = run_ops_tests("mmx")
    assert result.returncode == 1
    assert 'NV_NORMS_CPU_TARGET is "mmx", expected one that this CPU can run:' in result.stdout
