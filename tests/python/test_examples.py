"""Every program in examples/ runs, on small sizes, and shows what it says it shows.

keras_model.py has a test of its own (test_demo.py).
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from processes import ROOT, run_program

COVERED_ELSEWHERE = {"keras_model.py"}
TESTED = {
    "sample_layer_norm.py",
    "sample_instance_norm.py",
    "train_unet3d.py",
    "train_on_gpus.py",
    "serve_saved_model.py",
    "inspect_remapper_log.py",
}


def _run(name: str, *arguments: str, fork: bool = True, **variables: str) -> str:
    process = run_program(f"examples/{name}", *arguments, fork=fork, **variables)
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def test_each_example_is_tested() -> None:
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == TESTED | COVERED_ELSEWHERE


FLOAT32, MIXED = ("float32", 1e-5), ("mixed_float16", 5e-3)


@pytest.mark.parametrize(
    ("name", "policy", "limit"),
    [
        ("sample_layer_norm.py", *FLOAT32),
        ("sample_instance_norm.py", *MIXED),
        pytest.param("sample_layer_norm.py", *MIXED, marks=pytest.mark.slow),
        pytest.param("sample_instance_norm.py", *FLOAT32, marks=pytest.mark.slow),
    ],
)
def test_samples(name: str, policy: str, limit: float) -> None:
    output = _run(name, "--policy", policy, "--batch=3", "--size=6")
    apart = [float(number) for number in re.findall(r"\d\.\d\de[+-]\d\d", output)]
    assert len(apart) == (6 if "layer" in name else 4)
    assert max(apart) <= limit, output
    assert "NOT" not in output
    assert output.count("the same") == (0 if "layer" in name else 2)
    if "layer" in name:  # kernel, bias, gamma and beta, whoever computes the norm
        assert re.findall(r" (\d+)   \d\.", output) == ["4"] * 3


def test_unet_trains_alike_with_a_progress_bar() -> None:
    output = _run("train_unet3d.py", "--size=8", "--width=2", "--volumes=6", "--epochs=1")
    assert output.count("3/3") >= 2 and "━" in output  # the progress bars
    assert "0 normalizations found, 0 fused" in output
    assert "20 fused (10 instance_norm forward, 10 instance_norm backward)" in output
    stock, fused = (float(loss) for loss in re.findall(r"loss (\d\.\d{4}), step", output))
    assert abs(stock - fused) <= 1e-3
    assert float(output.split()[-1]) > 0


def test_each_replica_trains_alike_inside_xla_and_without() -> None:
    sizes = ["--batch=4", "--length=8", "--width=32", "--blocks=1", "--steps=3"]
    output = _run("train_on_gpus.py", *sizes, NV_NORMS_XLA="all")
    losses = [float(loss) for loss in re.findall(r"loss (\d\.\d{4}), step \d", output)]
    assert len(losses) == 4 and max(losses) - min(losses) <= 1e-3
    count = 3 * int(re.findall(r"^(\d+) replicas", output)[0])
    assert output.count(f"{count} layer_norm forward, {count} layer_norm backward") == 2


def test_serving_its_own_model_and_one_from_a_path(tmp_path: Path) -> None:
    output = _run("serve_saved_model.py", "--requests=3")
    assert "4 normalizations found, 4 fused (4 layer_norm forward)" in output
    assert float(re.findall(r"difference of an output: (\S+)", output)[0]) <= 1e-4

    import keras

    inputs = keras.Input((5, 6))
    model = keras.Model(inputs, keras.layers.RMSNormalization()(inputs))
    model.export(tmp_path / "model", verbose=False)
    output = _run("serve_saved_model.py", str(tmp_path / "model"), "--requests=1")
    assert "1 normalization found, 1 fused (1 rms_norm forward)" in output


def test_both_remappers_show_in_the_log() -> None:
    output = _run("inspect_remapper_log.py", fork=False)
    assert re.search(r"TensorFlow +remapper.cc:\d+\] Fuse Conv2D with BiasAdd and Relu", output)
    assert re.search(r"nv_norms_rewriter +remapper.cc:\d+\] Fuse .* into FusedLayerNorm", output)
    assert "1 normalization found, 1 fused (1 layer_norm forward)" in output
    assert re.search(r"FusedLayerNorm +0 -> 1\n", output)
    before, after = map(int, re.findall(r"(\d+) nodes -> (\d+) nodes", output)[0])
    assert after < before
