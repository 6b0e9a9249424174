"""The ops' tests on the CPU with each instruction set that their kernels are compiled for."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import run, run_pytest


# The widest one runs in tests/ops itself.
@pytest.mark.parametrize("target", ["baseline", "avx2"])
def test_the_ops_with_a_forced_target(target: str) -> None:
    if target == "avx2" and "avx2" not in Path("/proc/cpuinfo").read_text().split():
        pytest.skip("this CPU has no AVX2")
    files = ["tests/ops/test_forward.py", "tests/ops/test_gradient.py"]
    on_cpu = {"NV_NORMS_CPU_TARGET": target, "CUDA_VISIBLE_DEVICES": ""}
    process = run_pytest("-x", "-m", "not gpu and not slow", *files, **on_cpu)
    assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-1000:]
    assert " passed" in process.stdout


def test_a_target_that_does_not_exist_is_an_error() -> None:
    code = """
import tensorflow as tf
from nv_norms_rewriter import _library
_library.ops().fused_layer_norm(x=tf.ones((2, 4)), scale=[], offset=[], out_type=tf.float32)
"""
    process = run(code, NV_NORMS_CPU_TARGET="mmx", CUDA_VISIBLE_DEVICES="")
    assert process.returncode == 1
    assert 'NV_NORMS_CPU_TARGET is "mmx", expected one that this CPU can run:' in process.stderr
