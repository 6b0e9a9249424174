"""tensorflow-addons' norms, in a process of their own (it wants Keras 2 under Keras 3's names)."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(
    importlib.util.find_spec("tensorflow_addons") is None,
    reason="needs tensorflow-addons 0.23.0 (pip install --no-deps, with typeguard 2.13.3)",
)
def test_addons_norms_are_fused(tmp_path: Path) -> None:
    file = tmp_path / "outcomes.json"
    command = [sys.executable, "-m", "tests.corpus.run", "--table", "addons", "--json", str(file)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"TF_USE_LEGACY_KERAS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert file.exists(), done.stdout + done.stderr
    outcomes = json.loads(file.read_text())
    assert len(outcomes) >= 30
    failed = [outcome for outcome in outcomes if outcome["problems"] or outcome["skipped"]]
    assert not failed, done.stdout
