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
    "kind",
    [
        "CPU",
        pytest.param("GPU", marks=pytest.mark.gpu),
        pytest.param("GPUS", marks=[pytest.mark.gpu, TWO_GPUS]),
    ],
)
def test_mirrored_strategy(kind: str) -> None:
    """CPU and GPU: two replicas on parts of one. GPUS: on two, by NCCL."""
    command = [sys.executable, "-m", "pytest", str(Path(__file__).with_name("replicas.py"))]
    command += [] if kind == "CPU" else ["-m", "slow or not slow"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env=os.environ | {"REPLICAS_ON": kind}
    )
    assert done.returncode == pytest.ExitCode.OK, done.stdout + done.stderr
    assert f"{2 if kind == 'CPU' else 5} passed" in done.stdout
