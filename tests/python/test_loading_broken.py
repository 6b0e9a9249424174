"""Importing the package where something is missing, damaged, too old or of another version."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import processes
import pytest
from processes import NORM, copy_package, result, run


def test_environment_lets_the_import_pass_without_libraries(tmp_path: Path) -> None:
    packages = copy_package(tmp_path, libraries=False)
    assert result("import nv_norms_rewriter; print(1)", packages=packages, NV_NORMS_REWRITER="0")


def _import_error(packages: Path, before: str = "") -> str:
    """The message of the ImportError that importing the package raises."""
    process = run(before + "\nimport nv_norms_rewriter\n", packages=packages, fork=not before)
    assert process.returncode == 1, process.stderr
    last = process.stderr.strip().splitlines()[-1]
    assert last.startswith("nv_norms_rewriter._library.LoadError: "), process.stderr
    return last


def test_libraries_not_built(tmp_path: Path) -> None:
    message = _import_error(copy_package(tmp_path, libraries=False))
    assert "libnv_norms_core.so" in message
    assert "make demo" in message and "pip install ." in message


def test_command_without_libraries(tmp_path: Path) -> None:
    packages = copy_package(tmp_path, libraries=False)
    code = """
import sys
from nv_norms_rewriter.__main__ import main
sys.exit(main(["inspect", sys.argv[1]]))
"""
    graph = tmp_path / "graph.pbtxt"
    graph.write_text('node { name: "x" op: "NoOp" }')
    process = run(code, graph, packages=packages, NV_NORMS_REWRITER="0")
    assert process.returncode == 2, process.stderr
    assert process.stderr.splitlines()[-1].startswith("nv_norms_rewriter: nv_norms_rewriter is not")


def test_library_is_no_library(tmp_path: Path) -> None:
    packages = copy_package(tmp_path)
    core = packages / "nv_norms_rewriter" / "lib" / "libnv_norms_core.so"
    core.write_text("version https://git-lfs.github.com/spec/v1")
    assert "cannot load" in _import_error(packages)


@pytest.mark.parametrize("size", [3000, 4096, 5_000_000])
def test_core_library_cut_short(size: int, tmp_path: Path) -> None:
    """The system ends a process that loads one (SIGBUS)."""
    packages = copy_package(tmp_path)
    core = packages / "nv_norms_rewriter" / "lib" / "libnv_norms_core.so"
    with core.open("r+b") as file:
        file.truncate(size)
    message = _import_error(packages)
    assert "is cut short" in message and f"{size:,} of" in message


def test_variable_that_is_no_text() -> None:
    got, stderr = result(
        NORM
        + """
import os, subprocess
code = "import nv_norms_rewriter"
process = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE,
                         env={**os.environb, b"NV_NORMS_CPU_TARGET": b"\\xff"})
print(json.dumps([process.returncode, process.stderr.decode(errors="replace")]))
"""
    )
    assert got[0] == 0, got[1]
    assert "NV_NORMS_CPU_TARGET" in got[1]


def test_tensorflow_of_another_minor_version() -> None:
    patch = "import tensorflow; tensorflow.__version__ = '2.20.3'"
    message = _import_error(processes.PACKAGES, patch)
    assert "built for TensorFlow 2.21" in message and "TensorFlow 2.20.3 is installed" in message
    assert "pip install 'tensorflow==2.21.*'" in message


def test_tensorflow_of_another_patch_version() -> None:
    got, _ = result(
        """
import json
import tensorflow
tensorflow.__version__ = "2.21.9"
import nv_norms_rewriter
print(json.dumps(nv_norms_rewriter.is_enabled()))
"""
    )
    assert got is True


def test_tensorflow_not_installed(tmp_path: Path) -> None:
    block = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == "tensorflow":
            raise ModuleNotFoundError("No module named 'tensorflow'", name=name)
sys.meta_path.insert(0, Missing())
"""
    assert "pip install 'tensorflow==2.21.*'" in _import_error(processes.PACKAGES, block)


@pytest.mark.parametrize(
    ("harm", "said"),
    [(Path.unlink, "does not exist"), (lambda library: os.truncate(library, 3000), "is cut short")],
)
def test_plugin_library_missing_or_damaged(
    harm: Callable[[Path], None], said: str, tmp_path: Path
) -> None:
    packages = copy_package(tmp_path)
    harm(packages / "nv_norms_rewriter" / "lib" / "libnv_norms_cpu.so")
    got, stderr = result(
        NORM
        + """
import nv_norms_rewriter
print(json.dumps([nv_norms_rewriter.is_enabled(), right(norm()(x))]))
""",
        packages=packages,
    )
    assert got[1] is True
    assert stderr.count(f"libnv_norms_cpu.so {said}") == 1


def test_driver_too_old_is_said_once_and_the_cpu_is_served() -> None:
    got, stderr = result(
        NORM
        + """
import nv_norms_rewriter
from nv_norms_rewriter import _library, _registration
why = "driver supports CUDA 12.4, this build needs 13.0 or newer"
_library.Core.cuda_driver = lambda self: (False, why)
_registration._has_nvidia_device = lambda: True
nv_norms_rewriter.enable()
nv_norms_rewriter.enable()
y = norm()(x)
report = nv_norms_rewriter.report()
print(json.dumps([right(y), len(report), list(report.notices), str(report)]))
""",
        NV_NORMS_REWRITER="0",
        CUDA_VISIBLE_DEVICES="",
    )
    assert got[:2] == [True, 1]
    notice = "normalizations on a GPU stay as they are: driver supports CUDA 12.4"
    assert len(got[2]) == 1 and got[2][0].startswith(notice)
    assert notice in got[3]
    assert stderr.count(notice) == 1


OTHER_PARTS = {
    "tensorflow.python.eager.polymorphic_function.concrete_function": (
        "_FirstOrderTapeGradientFunctions",
        "in functions that a tape outside of them differentiates",
        ["graph", "xla"],
    ),
    "tensorflow.python.eager.polymorphic_function.transform": (
        "FUNC_GRAPH_TRANSFORMS",
        "in functions that XLA compiles",
        ["graph"],
    ),
}


@pytest.mark.parametrize("module", OTHER_PARTS)
def test_goes_on_without_inner_parts_that_tensorflow_lacks(module: str) -> None:
    part, where, served = OTHER_PARTS[module]
    got, stderr = result(
        NORM
        + f"""
import importlib
module = importlib.import_module("{module}")
kept = module.{part}
del module.{part}
import nv_norms_rewriter
nv_norms_rewriter.enable()
nv_norms_rewriter.configure(xla="all")
module.{part} = kept  # TensorFlow itself needs it
ys = [norm()(x), tf.function(norm().python_function, jit_compile=True)(x)]
report = nv_norms_rewriter.report()
print(json.dumps([[right(y) for y in ys], sorted(r.where for r in report.fused),
                  list(report.notices)]))
"""
    )
    assert got[:2] == [[True, True], served]
    (notice,) = got[2]
    assert notice.startswith(f"normalizations {where} stay as they are") and part in notice
    assert stderr.count(where) == 1


def test_hooks_that_a_tape_needs_are_all_there_or_none() -> None:
    notices, _ = result("""
        import json
        from tensorflow.python.eager.polymorphic_function import concrete_function
        from tensorflow.python.eager.wrap_function import WrappedFunction
        from tensorflow.python.ops import cond_v2, while_v2
        parts = [
            (concrete_function._FirstOrderTapeGradientFunctions, "_forward_and_backward_functions"),
            (concrete_function._DelayedRewriteGradientFunctions, "_construct_forward_backward"),
            (while_v2, "_get_graph"), (cond_v2, "_create_grad_func"), (WrappedFunction, "__init__"),
        ]
        before = [getattr(*part) for part in parts]
        kept = cond_v2.get_func_graphs
        del cond_v2.get_func_graphs
        import nv_norms_rewriter
        cond_v2.get_func_graphs = kept
        assert [getattr(*part) for part in parts] == before
        print(json.dumps(list(nv_norms_rewriter.report().notices)))
        """)
    (notice,) = notices
    assert "in functions that a tape outside of them differentiates stay" in notice
    assert "get_func_graphs" in notice


# What the driver's library is asked for, one line each.
