"""tf.distribute on a CPU, which has to be split before TensorFlow starts: in another process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def test_mirrored_strategy() -> None:
    command = [sys.executable, "-m", "pytest", str(Path(__file__).with_name("replicas.py"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == pytest.ExitCode.OK, done.stdout + done.stderr
    assert "4 passed" in done.stdout
