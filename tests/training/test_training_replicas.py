"""tf.distribute on one device, which is split before TensorFlow starts: in another process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("kind", ["CPU", pytest.param("GPU", marks=pytest.mark.gpu)])
def test_mirrored_strategy(kind: str) -> None:
    command = [sys.executable, "-m", "pytest", str(Path(__file__).with_name("replicas.py"))]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env=os.environ | {"REPLICAS_ON": kind}
    )
    assert done.returncode == pytest.ExitCode.OK, done.stdout + done.stderr
    assert "8 passed" in done.stdout
