"""tf.distribute, by devices that are chosen before TensorFlow starts: in another process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

TWO_GPUS = pytest.mark.skipif(
    len(tf.config.list_physical_devices("GPU")) < 2, reason="needs two GPUs"
)


@pytest.mark.parametrize(
    ("kind", "cases", "passed"),
    [
        ("CPU", "not slow", 3),
        pytest.param("CPU", "slow", 5, marks=pytest.mark.slow),
        pytest.param("GPU", "slow or not slow", 8, marks=pytest.mark.gpu),
        pytest.param("GPUS", "slow or not slow", 8, marks=[pytest.mark.gpu, TWO_GPUS]),
    ],
)
def test_mirrored_strategy(kind: str, cases: str, passed: int) -> None:
    """CPU and GPU: two replicas on parts of one. GPUS: on two, by NCCL."""
    file = Path(__file__).with_name("replicas.py")
    command = [sys.executable, "-m", "pytest", "-m", cases, str(file)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env=os.environ | {"REPLICAS_ON": kind}
    )
    assert done.returncode == pytest.ExitCode.OK, done.stdout + done.stderr
    assert f"{passed} passed" in done.stdout
