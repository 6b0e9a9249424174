"""``python -m nv_norms_rewriter inspect``."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import keras
import pytest
import tensorflow as tf
from processes import PACKAGES
from tensorflow.core.protobuf import saved_model_pb2

import nv_norms_rewriter
from nv_norms_rewriter.__main__ import main


@pytest.fixture(scope="module")
def model() -> keras.Model:
    x = keras.Input((6, 8), name="x")
    y = keras.layers.LayerNormalization(name="first")(keras.layers.Dense(8)(x))
    y = keras.layers.LayerNormalization(name="second")(keras.layers.Dense(8, "relu")(y))
    return keras.Model(x, keras.layers.Dense(3)(y), name="two_norms")


@pytest.fixture(scope="module")
def saved_model(model: keras.Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "model"
    model.export(path, verbose=False)
    return path


@pytest.fixture(scope="module")
def graph_def(model: keras.Model) -> tf.compat.v1.GraphDef:
    spec = tf.TensorSpec((None, 6, 8))
    return tf.function(lambda x: model(x)).get_concrete_function(spec).graph.as_graph_def()


def _output(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())


def test_saved_model(saved_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(saved_model), "--signature", "serving_default"]) == 0
    text = _output(capsys)
    assert text.startswith("signature serving_default:")
    assert "2 normalizations found, 2 fused (2 layer_norm forward)" in text
    before, after = (int(text.split(word)[0].split()[-1]) for word in (" nodes before", " after"))
    assert after < before


def test_all_signatures_of_the_protobuf_itself(
    saved_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(saved_model / "saved_model.pb")]) == 0
    text = _output(capsys)
    assert "signature serve:" in text and "signature serving_default:" in text
    assert "__saved_model_init_op" not in text


@pytest.mark.parametrize("as_text", [False, True])
def test_graph_def(
    graph_def: tf.compat.v1.GraphDef,
    as_text: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = "graph.pbtxt" if as_text else "graph.pb"
    tf.io.write_graph(graph_def, str(tmp_path), name, as_text=as_text)
    assert main(["inspect", str(tmp_path / name), "--device", "cpu"]) == 0
    text = _output(capsys)
    assert text.startswith(f"{name}: {len(graph_def.node)} nodes before")
    assert "2 normalizations found, 2 fused" in text


def test_graphs_for_tensorboard(
    saved_model: Path,
    graph_def: tf.compat.v1.GraphDef,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tf.io.write_graph(graph_def, str(tmp_path), "a graph.pb", as_text=False)
    folder = tmp_path / "new" / "logs"
    for path, name in ((saved_model, "signature_serving_default"), ("a graph.pb", "a_graph.pb")):
        for _ in range(2):  # the second time replaces the first
            assert main(["inspect", str(tmp_path / path), "--tensorboard", str(folder)]) == 0
        assert f"tensorboard --logdir {folder} shows the graphs" in _output(capsys)
        ops = {}
        for side in ("before", "after"):
            (events,) = (folder / name / side).glob("*tfevents*")
            records = [
                tf.compat.v1.Event.FromString(record.numpy())
                for record in tf.data.TFRecordDataset(str(events))
            ]
            assert records[0].file_version == "brain.Event:2"
            graph = tf.compat.v1.GraphDef.FromString(records[1].graph_def)
            ops[side] = [node.op for node in graph.node]
        assert "FusedLayerNorm" not in ops["before"] and "Rsqrt" in ops["before"]
        assert ops["after"].count("FusedLayerNorm") == 2 and "Rsqrt" not in ops["after"]
    if importlib.util.find_spec("tensorboard"):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        run = EventAccumulator(str(folder / "a_graph.pb" / "before"))
        run.Reload()
        assert [node.name for node in run.Graph().node] == [node.name for node in graph_def.node]


def test_drawing(
    graph_def: tf.compat.v1.GraphDef, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tf.io.write_graph(graph_def, str(tmp_path), "graph.pb", as_text=False)
    dot = tmp_path / "graph.dot"
    assert main(["inspect", str(tmp_path / "graph.pb"), "--dot", str(dot)]) == 0
    text = dot.read_text()
    before, after = text.split('label="graph.pb: after')
    assert before.count('[label="Rsqrt\\n') == 2 and "FusedLayerNorm" not in before
    assert after.count('[label="FusedLayerNorm\\n') == 2 and "Rsqrt" not in after
    assert text.count("{") == text.count("}") and text.count('"') % 2 == 0
    assert "graph.dot" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: None, "does not exist"),
        (lambda p: p.mkdir(), "a folder without saved_model.pb"),
        (lambda p: p.write_bytes(b"\xff\xff not a graph"), "is not a GraphDef"),
        (lambda p: p.write_bytes(b""), "a graph without nodes"),
    ],
)
def test_unreadable(make, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "thing.pb"
    make(path)
    assert main(["inspect", str(path)]) == 2
    assert message in capsys.readouterr().err


def test_wrong_names(
    saved_model: Path,
    graph_def: tf.compat.v1.GraphDef,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["inspect", str(saved_model), "--signature", "nope"]) == 2
    assert "no signature 'nope'; it has: serve, serving_default" in capsys.readouterr().err
    tf.io.write_graph(graph_def, str(tmp_path), "graph.pb", as_text=False)
    assert main(["inspect", str(tmp_path / "graph.pb"), "--fetch", "nope"]) == 2
    assert "no node named 'nope'" in capsys.readouterr().err


def test_saved_model_with_an_op_that_is_not_there(
    saved_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(saved_model, copy)
    saved = saved_model_pb2.SavedModel.FromString((copy / "saved_model.pb").read_bytes())
    for function in saved.meta_graphs[0].graph_def.library.function:
        for node in function.node_def:
            node.op = node.op.replace("Rsqrt", "NoSuchOp")
    (copy / "saved_model.pb").write_bytes(saved.SerializeToString())
    assert main(["inspect", str(copy)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("nv_norms_rewriter: ") and "NoSuchOp" in error


def test_option_of_the_other_kind_of_file(
    saved_model: Path,
    graph_def: tf.compat.v1.GraphDef,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for path in (saved_model, saved_model / "saved_model.pb"):
        assert main(["inspect", str(path), "--fetch", "StatefulPartitionedCall"]) == 2
        error = capsys.readouterr().err
        assert "--fetch names nodes of a GraphDef" in error and f"{path} is a SavedModel" in error
        assert "--signature" in error
    tf.io.write_graph(graph_def, str(tmp_path), "graph.pb", as_text=False)
    assert main(["inspect", str(tmp_path / "graph.pb"), "--signature", "serving_default"]) == 2
    error = capsys.readouterr().err
    assert "--signature names a signature of a SavedModel" in error
    assert "graph.pb is a GraphDef" in error and "--fetch" in error


def test_functions_are_counted_and_drawn_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    @tf.function
    def inner(x):
        return keras.ops.layer_normalization(x)

    outer = tf.function(lambda x: tf.nn.relu(inner(x)), autograph=False)
    graph = outer.get_concrete_function(tf.TensorSpec((4, 8))).graph.as_graph_def()
    file = tmp_path / "graph.pb"
    file.write_bytes(graph.SerializeToString())
    assert main(["inspect", str(file), "--dot", str(tmp_path / "graph.dot")]) == 0
    text = _output(capsys)
    found = re.search(
        r"(\d+) nodes before, (\d+) after; (\d+) before, (\d+) after in function", text
    )
    assert found is not None, text
    before, after, body_before, body_after = map(int, found.groups())
    assert before == after and body_after < body_before
    assert "FusedLayerNorm" in (tmp_path / "graph.dot").read_text()


def test_paths_that_look_like_markup(
    saved_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "[red]"
    folder.mkdir()
    drawing, graphs = folder / "[" / "b].dot", folder / "[bold]"
    drawing.parent.mkdir()
    command = ["inspect", str(saved_model), "--dot", str(drawing), "--tensorboard", str(graphs)]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert str(drawing) in text and str(graphs) in text
    assert drawing.is_file() and graphs.is_dir()


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out.strip() == nv_norms_rewriter.__version__


def test_as_a_command(saved_model: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "nv_norms_rewriter", "inspect", str(saved_model)],
        cwd=PACKAGES,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    assert "2 normalizations found, 2 fused" in process.stdout
