"""The benchmarks run, print the lines that they say they print, and write CSV that is read again.

What they measure is not tested: a figure depends on the machine.
"""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from processes import ROOT, run_program


def _run(name: str, *arguments: object) -> str:
    process = run_program(f"benchmarks/{name}.py", *arguments, CUDA_VISIBLE_DEVICES="")
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_layer_norm_and_its_table(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    quick = ["--rounds", 1, "--divide", 10000, "--csv", out]
    output = _run("benchmark_layer_norm", *quick, "--shapes", 2)
    assert re.findall(r"^Input: (\d+ \d+) Time\(ms\): TF: \d+\.\d\d NV: \d+\.\d\d ", output, re.M)
    assert len(re.findall("^Input: ", output, re.M)) == 1
    rows = _rows(out)
    assert len(rows) == 11
    automatic = [row for row in rows if row["way"] == "NV automatic"]
    assert [(r["fused_forward"], r["fused_backward"]) for r in automatic] == [("1", "1")]
    table = _run("report", out, "--plots", tmp_path)
    assert "| shape | policy | TF | NV | TF function |" in table
    plot = (tmp_path / "layer_norm.svg").read_text()
    assert len(set(re.findall(r'fill="(#\w+)"', plot))) >= 10  # a colour to a way
    assert all(row["shape"] in table for row in rows)


@pytest.mark.slow
def test_instance_norm(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    output = _run(
        "benchmark_instance_norm", "--rounds=1", "--divide=16", "--shapes=3", "--csv", out
    )
    assert re.findall(r"^Input: (\(.*\)) Time\(ms\): TF: ", output, re.M) == [
        "(4, 8, 8, 8, 32)",
        "(4, 32, 8, 8, 8)",
    ]
    assert "End of channel last layout." in output and "End of channel first layout." in output
    assert "| 4x8x8x8x32 | N...C | float32 |" in _run("report", out)


@pytest.mark.slow
def test_dense_layers(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    output = _run(
        "benchmark_dense_layers", "--rounds=1", "--units", 32, 5121, "--batches", 8, "--csv", out
    )
    assert (
        len(
            re.findall(
                r"^Batch: \d+ Units: \d+ Time\(ratio to no norm\): no norm: 1.00", output, re.M
            )
        )
        == 3
    )
    fused = {(r["fused_forward"], r["fused_backward"]) for r in _rows(out) if "fused" in r["norm"]}
    assert fused == {("5", "5")}
    assert "| 128 | 5121 |" in _run("report", out)


@pytest.mark.slow
def test_keras_layers(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    output = _run("benchmark_keras_layers", "--size=8", "--batch=2", "--steps=2", "--csv", out)
    for mode in ("fit", "step"):
        assert re.search(rf"^BatchNormalization {mode} current: .* \| 0 fused$", output, re.M)
        assert re.search(rf"^GroupNormalization {mode} current: .* \| 6 fused$", output, re.M)
        assert re.search(rf"^LayerNormalization {mode} current: .* \| 6 fused$", output, re.M)
    errors = {
        (r["input"], r["formula"]): r["largest_error"] for r in _rows(tmp_path / "out_accuracy.csv")
    }
    assert float(errors["float32, mean 10000, deviation 1", "fused"]) < 1e-5
    assert float(errors["float32, mean 10000, deviation 1", "fast, in float32"]) > 1
    assert errors["float16, deviation 1000 (x^2 overflows)", "fast, in x's type"] == "inf"
    assert "| LayerNormalization | 2 | 8 | fit |" in _run("report", out)


@pytest.mark.slow
def test_models(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    output = _run("benchmark_models", "--small", "--rounds=1", "--csv", out)
    lines = re.findall(r"^Model: (\w+) (\w+) stock: ", output, re.M)
    models = ["bert", "llama", "qwen3", "convnext", "unet3d", "unet3d_128", "diffusion", "guided"]
    models += ["generator", "dit", "resnet"]
    assert lines == [(model, mode) for model in models for mode in ("train", "predict")]
    rows = _rows(out)
    for row in rows:
        if row["way"] == "fused":
            assert row["fused_forward"] == row["norms"] != "0"
            assert row["fused_backward"] == (row["norms"] if row["mode"] == "train" else "0")
        if row["way"] == "no norms":
            assert row["norms"] == "0"
        # Five steps of Adam on two images take a rounding of the ResNet's gradient, which is as
        # close to float64's as stock's is (4e-6 of it), to 3e-3 of the loss.
        elif "XLA" not in row["way"] and (row["model"], row["mode"]) != ("resnet", "train"):
            assert float(row["apart"]) < 1e-3
    assert {row["model"] for row in rows if row["way"] == "no norms"} == {
        "convnext",
        "unet3d",
        "unet3d_128",
        "diffusion",
        "guided",
        "dit",
        "resnet",
    }
    assert "| unet3d | train | small | float32 |" in _run("report", out)


@pytest.mark.slow
def test_layout_leaves_no_transposes_that_the_norms_had_brought(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    _run("layout", "--models=unet3d", "--policies=float32", "--csv", out)
    rows = _rows(out)
    for batch in ("known", "unknown"):
        count = {r["way"]: int(r["transposes"]) for r in rows if r["batch"] == batch}
        assert count["fused"] <= count["no norms"] < count["stock"]
    assert "| unet3d | float32 | known |" in _run("report", out)


@pytest.mark.slow
def test_fit_inside_xla(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    _run("xla_training", "--small", "--models=unet3d", "--rounds=1", "--xla=all", "--csv", out)
    rows = {row["way"]: row for row in _rows(out)}
    assert (rows["stock"]["fused_forward"], rows["all"]["fused_forward"]) == ("0", "14")
    assert rows["all"]["fused_backward"] == "14"
    assert "| unet3d | mixed_float16 |" in _run("report", out)


@pytest.mark.slow
def test_fit_where_xla_compiles_each_replica(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    small = ["--small", "--models=bert", "--rounds=1", "--xla=all"]
    _run("xla_training", *small, "--mirrored", "--compiled", "--csv", out)
    stock, fused = _rows(out)
    assert (stock["fused_forward"], fused["fused_forward"]) == ("0", "5")
    assert fused["model"] == "bert, compiled"


def _run_all(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["benchmarks/run.sh", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""},
    )


def test_all_of_them_says_what_failed(tmp_path: Path) -> None:
    process = _run_all("-p", "layer_form", tmp_path)
    assert process.returncode == 1
    assert "no such part: layer_form" in process.stderr


@pytest.mark.slow
def test_all_of_them_at_once(tmp_path: Path) -> None:
    process = _run_all("-q", "-j", "-p", "layer_form dense_layers layer_norm", tmp_path)
    assert process.returncode == 1  # layer_form; but the others ran
    assert len(_rows(tmp_path / "layer_norm.csv")) == 9 * 9
    assert len(_rows(tmp_path / "dense_layers.csv")) == 2 * 7
    tables = (tmp_path / "tables.md").read_text()
    assert "**Layer norm, ms a step**" in tables and "**Five dense layers, ms a step**" in tables
    assert "FAILED" not in (tmp_path / "log.txt").read_text()
