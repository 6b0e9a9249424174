"""examples/keras_model.py, the program of ``make demo``."""

from __future__ import annotations

import json
import subprocess
import sys

from processes import ROOT, variables_for


def test_every_layer_normalization_is_fused_and_as_close() -> None:
    process = subprocess.run(
        [sys.executable, "examples/keras_model.py", "--calls=3"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=variables_for(),
    )
    assert process.returncode == 0, process.stdout + process.stderr
    got = json.loads(process.stdout.splitlines()[-1])
    assert got["norms"] == 9  # one for the embeddings, two for each of the four layers
    assert got["fused"] == got["norms"]
    assert 0 < got["error_stock"] < 1
    assert got["error_fused"] <= 2 * got["error_stock"]
    assert got["speedup"] > 0
    assert process.stdout.count("into FusedLayerNorm") == 2
    assert "9 normalizations found, 9 fused (9 layer_norm forward)" in process.stdout
    assert process.stderr == ""
