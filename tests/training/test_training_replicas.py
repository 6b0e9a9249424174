"""tf.distribute, by devices that are chosen before TensorFlow starts: in another process."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf
from processes import run_pytest

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
    done = run_pytest("-m", cases, file, REPLICAS_ON=kind)
    assert done.returncode == pytest.ExitCode.OK, done.stdout + done.stderr
    assert f"{passed} passed" in done.stdout
