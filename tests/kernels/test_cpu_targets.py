"""The ops' tests on the CPU with each instruction set that their kernels are compiled for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from processes import run

ROOT = Path(__file__).resolve().parents[2]


# The widest one runs in tests/ops itself.
@pytest.mark.parametrize("target", ["baseline", "avx2"])
def test_the_ops_with_a_forced_target(target: str) -> None:
    if target == "avx2" and "avx2" not in Path("/proc/cpuinfo").read_text().split():
        pytest.skip("this CPU has no AVX2")
    files = ["tests/ops/test_forward.py", "tests/ops/test_gradient.py"]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-m", "not gpu and not slow", *files],
        cwd=ROOT,
        env=os.environ | {"NV_NORMS_CPU_TARGET": target, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-1000:]
    assert " passed" in result.stdout


def test_a_target_that_does_not_exist_is_an_error() -> None:
    code = """
import tensorflow as tf
from nv_norms_rewriter import _library
_library.ops().fused_layer_norm(x=tf.ones((2, 4)), scale=[], offset=[], out_type=tf.float32)
"""
    process = run(code, NV_NORMS_CPU_TARGET="mmx", CUDA_VISIBLE_DEVICES="")
    assert process.returncode == 1
    assert 'NV_NORMS_CPU_TARGET is "mmx", expected one that this CPU can run:' in process.stderr
