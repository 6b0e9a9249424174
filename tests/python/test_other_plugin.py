"""In a process where another plugin already optimizes CPU graphs: AMD's zentf, from PyPI."""

from __future__ import annotations

import pytest
from processes import NORM, ROOT, result

LIBRARY = ROOT / ".build" / "zentf" / "tensorflow-plugins" / "libamdcpu_plugin.so"


@pytest.mark.skipif(not LIBRARY.exists(), reason=f"`make test` could not fetch {LIBRARY}")
def test_functions_are_rewritten_when_they_are_traced() -> None:
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
print(json.dumps([nv_norms_rewriter.is_enabled(), right(y),
                  [(r.where, r.fused) for r in report], list(report.notices),
                  [node.op for node in fused.node if node.op == "FusedLayerNorm"]]))
""",
        LIBRARY,
    )
    enabled, right, found, notices, offline = got
    assert (enabled, right, found) == (True, True, [["trace", True]])
    assert len(notices) == 1 and "another TensorFlow plugin already optimizes CPU" in notices[0]
    assert stderr.count("another TensorFlow plugin already optimizes CPU graphs") == 1
    # The stock ops that are written in the place of the fused one, and those that nobody reads now.
    assert offline == ["FusedLayerNorm"] * 2, "rewriting offline needs no registration"
