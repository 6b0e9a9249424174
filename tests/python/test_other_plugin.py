"""In a process where another plugin already optimizes CPU graphs: AMD's zentf, from PyPI."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from processes import NORM, ROOT, result

ZENTF = "zentf==2.21.0.0"
CACHE = ROOT / ".build" / "zentf"


@pytest.fixture(scope="module")
def zentf() -> Path:
    """zentf's plugin library, unpacked beside the OpenMP library that it needs."""
    library = CACHE / "tensorflow-plugins" / "libamdcpu_plugin.so"
    if not library.exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--only-binary=:all:", "--dest", str(CACHE), ZENTF]
        process = subprocess.run(command, capture_output=True, text=True)
        if process.returncode != 0:
            pytest.skip(f"{ZENTF} cannot be fetched here: {process.stderr.strip()[-300:]}")
        (wheel,) = CACHE.glob("zentf-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(CACHE)
        wheel.unlink()
    return library


def test_the_other_plugin_keeps_the_cpu(zentf: Path) -> None:
    got, stderr = result(
        NORM
        + """
from tensorflow.python.framework import load_library
load_library.load_pluggable_device_library(sys.argv[1])
import nv_norms_rewriter
nv_norms_rewriter.enable()
y = norm()(x)
report = nv_norms_rewriter.report()
fused, found = nv_norms_rewriter.rewrite(norm().get_concrete_function(x).graph.as_graph_def())
print(json.dumps([nv_norms_rewriter.is_enabled(), right(y), len(report), list(report.notices),
                  [node.op for node in fused.node if node.op == "FusedLayerNorm"]]))
""",
        zentf,
    )
    enabled, right, found, notices, offline = got
    assert (enabled, right, found) == (False, True, 0)
    assert len(notices) == 1 and "another TensorFlow plugin already optimizes CPU" in notices[0]
    assert stderr.count("another TensorFlow plugin already optimizes CPU graphs") == 1
    assert offline == ["FusedLayerNorm"], "rewriting offline needs no registration"
