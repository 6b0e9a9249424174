"""Environment variables that say what they may not: a sentence, and the import goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import NORM, copy_package, result
from processes import run as run_code

# Runs a norm that Grappler sees, one that XLA compiles, and one that a tape outside differentiates.
RUN = (
    NORM
    + """
import nv_norms_rewriter
ys = [norm()(x), tf.function(norm().python_function, jit_compile=True)(x)]
with tf.GradientTape() as tape:
    tape.watch(x)
    ys.append(norm()(x))
dx = tape.gradient(ys[-1], x)
report = nv_norms_rewriter.report()
print(json.dumps([[right(y) for y in ys], report.counts, report.notices]))
"""
)
FUSED = {"layer_norm forward": 2, "left_to_xla": 1, "layer_norm backward": 1}


def run(**environment: str) -> tuple[dict[str, int], list[str], str]:
    """The report's counts and notices, and stderr; the norms must be right."""
    (right, counts, notices), stderr = result(RUN, CUDA_VISIBLE_DEVICES="", **environment)
    assert right == [True, True, True]
    return counts, notices, stderr


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("NV_NORMS_XLA", "Silly", "auto, all or none; it is taken for auto"),
        ("NV_NORMS_REWRITER", "disable", "0, off, false or no; it is taken for 1"),
    ],
)
def test_word_that_is_none_of_the_choices(name: str, value: str, expected: str) -> None:
    counts, (notice,), stderr = run(**{name: value})
    assert counts == FUSED
    assert notice.startswith(f"the environment variable {name} is {value!r}, expected ")
    assert notice.endswith(expected)
    assert stderr.count(notice) == 1


def test_words_in_any_case_are_silent() -> None:
    counts, notices, stderr = run(NV_NORMS_XLA=" Auto ", NV_NORMS_REWRITER="Yes")
    assert counts == FUSED and not notices
    assert "nv_norms_rewriter:" not in stderr


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NV_NORMS_CPU_TARGET", "expected one that this CPU can run: "),
        ("NV_NORMS_CPU_PREFETCH", "expected stores or passes"),
    ],
)
def test_cpu_kernels_that_cannot_run_leave_the_norms_alone(name: str, expected: str) -> None:
    counts, (notice,), stderr = run(**{name: "silly"})
    assert counts == {}
    sentence = "normalizations on the CPU stay as they are: the environment variable "
    assert notice.startswith(f'{sentence}{name} is "silly", {expected}')
    assert stderr.count(notice) == 1


def test_cpu_kernels_of_a_choice_that_there_is() -> None:
    counts, notices, _ = run(NV_NORMS_CPU_TARGET="baseline", NV_NORMS_CPU_PREFETCH="passes")
    assert counts == FUSED and not notices


def test_folder_for_graphs_is_made(tmp_path: Path) -> None:
    _, _, stderr = run(NV_NORMS_DUMP_DIR=str(tmp_path / "new"))
    names = {file.name for file in (tmp_path / "new").iterdir()}
    assert {"graph_0_before.pb", "graph_0_after.pb"} <= names
    assert "NV_NORMS_DUMP_DIR" not in stderr


def test_folder_for_graphs_that_cannot_be_made_is_said_once(tmp_path: Path) -> None:
    counts, _, stderr = run(NV_NORMS_DUMP_DIR=str(tmp_path / "no" / "folder"))
    assert counts == FUSED
    assert stderr.count("NV_NORMS_DUMP_DIR is") == 1
    (line,) = [line for line in stderr.splitlines() if "NV_NORMS_DUMP_DIR is" in line]
    assert f'"{tmp_path}/no/folder", expected a folder that can be written' in line
    assert "graph_0_before.pb is not written (No such file or directory)" in line


def test_path_that_the_locale_cannot_read(tmp_path: Path) -> None:
    """TensorFlow takes paths in UTF-8 alone; building again, as other errors say, does not help."""
    folder = tmp_path / "p\u00e4th"
    folder.mkdir()
    packages = copy_package(folder)
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    process = run_code("import nv_norms_rewriter", packages=packages, **plain)
    assert process.returncode != 0
    assert "Set PYTHONUTF8=1" in process.stderr.splitlines()[-1]
    again = run_code("import nv_norms_rewriter", packages=packages, LC_ALL="C", PYTHONUTF8="1")
    assert again.returncode == 0, again.stderr
