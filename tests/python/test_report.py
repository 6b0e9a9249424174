"""report(), clear_report() and what they print."""

from __future__ import annotations

import dataclasses
import io
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from processes import result

import nv_norms_rewriter
from nv_norms_rewriter import Record, Report, _process, _records

FUSED = Record(
    kind="layer_norm",
    direction="forward",
    fused=True,
    reason="",
    detail="",
    inputs=("model/x:0", "gamma:0", "beta:0"),
    outputs=("model/norm/y:0",),
    axes=(1, 2),
    epsilon=1e-5,
    dtype="bfloat16",
    device="/job:localhost/replica:0/task:0/device:CPU:0",
    graph="__inference_f_1",
)
REFUSED = dataclasses.replace(
    FUSED, kind="rms_norm", fused=False, reason="some_reason", detail="The epsilon is a variable."
)


@pytest.fixture(autouse=True)
def _empty_report(monkeypatch: pytest.MonkeyPatch) -> None:
    nv_norms_rewriter.clear_report()
    monkeypatch.setitem(_process.state(), "notices", [])


def _layer_norm(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tf.Tensor:
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, beta, gamma, 1e-3)


def test_one_record_for_a_norm_however_often_it_runs(rng: np.random.Generator) -> None:
    x = tf.constant(rng.normal(size=(4, 16)), tf.float32)
    function = tf.function(lambda x, g, b: tf.nn.relu(_layer_norm(x, g, b)))
    for _ in range(3):
        function(x, tf.ones(16), tf.zeros(16))
    (record,) = nv_norms_rewriter.report()
    assert (record.kind, record.direction, record.fused) == ("layer_norm", "forward", True)
    assert (record.reason, record.dtype) == ("", "float32")
    assert [axis % 2 for axis in record.axes] == [1]
    assert record.epsilon == pytest.approx(1e-3)
    on_gpu = bool(tf.config.list_physical_devices("GPU"))
    assert record.device.endswith("GPU:0" if on_gpu else "CPU:0")
    assert record.outputs and record.inputs


def test_records_keep_their_order_and_are_forgotten_on_request(rng: np.random.Generator) -> None:
    x = tf.constant(rng.normal(size=(4, 16)), tf.float32)
    one = tf.function(lambda x: tf.nn.relu(_layer_norm(x, tf.ones(16), tf.zeros(16))))
    two = tf.function(
        lambda x: (
            tf.nn.relu(_layer_norm(x, tf.ones(16), tf.zeros(16)))
            + tf.nn.relu(_layer_norm(x * x, tf.ones(16), tf.zeros(16)))
        )
    )
    one(x)
    first = nv_norms_rewriter.report()
    two(x)
    both = nv_norms_rewriter.report()
    assert (len(first), len(both)) == (1, 3)
    assert both[:1] == first
    nv_norms_rewriter.clear_report()
    assert len(nv_norms_rewriter.report()) == 0
    one(x)  # optimized already
    assert len(nv_norms_rewriter.report()) == 0


def test_refusal_is_reported_once_though_tensorflow_optimizes_twice(
    rng: np.random.Generator,
) -> None:
    function = tf.function(lambda x: tf.math.rsqrt(tf.math.reduce_variance(x, -1) + 1e-3))
    function(tf.constant(rng.normal(size=(4, 16)), tf.float32))
    (record,) = nv_norms_rewriter.report()
    assert record.reason == "no_output"


def test_refusals_of_functions_of_one_name_are_all_reported() -> None:
    """What was found in a trace was found once; its graph is named as the Python function is."""
    for width in (16, 8, 8):
        function = tf.function(
            lambda x: _layer_norm(x, tf.ones(1), tf.zeros(1)), jit_compile=True, autograph=False
        )
        function(tf.ones((4, width)))
    report = nv_norms_rewriter.report()
    assert report.counts == {"left_to_xla": 3}
    assert len({(r.graph, r.outputs) for r in report}) == 1
    assert list(nv_norms_rewriter.report()) == list(report)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_fused_record_has_neither_reason_nor_detail(jit_compile: bool, every_norm: None) -> None:
    function = tf.function(
        lambda x: tf.nn.relu(_layer_norm(x, tf.ones(16), tf.zeros(16))), jit_compile=jit_compile
    )
    function(tf.ones((4, 16)))
    (record,) = nv_norms_rewriter.report()
    assert (record.fused, record.reason, record.detail) == (True, "", "")
    assert str(nv_norms_rewriter.report()).splitlines()[2].endswith(" fused")


@pytest.mark.parametrize(
    ("name", "value"), [("disable_meta_optimizer", True), ("use_plugin_optimizers", False)]
)
def test_option_of_tensorflow_that_keeps_graphs_from_us_is_noted(name: str, value: bool) -> None:
    function = tf.function(lambda x: tf.nn.relu(_layer_norm(x, tf.ones(16), tf.zeros(16))))
    tf.config.optimizer.set_experimental_options({name: value})
    try:
        function(tf.ones((4, 16)))
        report = nv_norms_rewriter.report()
    finally:
        tf.config.optimizer.set_experimental_options({name: not value})
    assert len(report) == 0
    (notice,) = report.notices
    assert f"{name!r}: {value}" in notice and "nothing is fused" in notice
    assert f"Note: tf.config.optimizer.set_experimental_options has {name!r}" in str(report)
    assert not nv_norms_rewriter.report().notices


def test_least_number_of_nodes_to_a_graph_is_noted() -> None:
    function = tf.function(lambda x: tf.nn.relu(_layer_norm(x, tf.ones(16), tf.zeros(16))))
    tf.config.optimizer.set_experimental_options({"min_graph_nodes": 1000})
    try:
        function(tf.ones((4, 16)))
        report = nv_norms_rewriter.report()
    finally:
        tf.config.optimizer.set_experimental_options({"min_graph_nodes": 4})
    assert len(report) == 0
    (notice,) = report.notices
    assert "'min_graph_nodes': 1000" in notice and "nothing is fused" in notice
    assert not nv_norms_rewriter.report().notices


def test_process_that_never_stops_keeps_the_latest_records(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_records, "_MOST", 2)
    x = tf.constant(rng.normal(size=(4, 16)), tf.float32)
    for width in (16, 8, 4):
        tf.function(lambda x: tf.nn.relu(_layer_norm(x, tf.ones(1), tf.zeros(1))))(x[:, :width])
        nv_norms_rewriter.report()
    report = nv_norms_rewriter.report()
    assert len(report) == 2
    assert "the latest 2 records; 1 came before" in str(report)
    nv_norms_rewriter.clear_report()
    assert not nv_norms_rewriter.report().notices


@pytest.mark.parametrize("name", ["Lamb", "Adafactor", "Muon"])
def test_lengths_of_weights_are_no_normalizations(name: str) -> None:
    """Optimizers take the lengths of weights, gradients and updates, or their root mean squares."""
    keras.utils.set_random_seed(7)
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(16), keras.layers.LayerNormalization()]
    )
    optimizer = getattr(keras.optimizers, name)(1e-3)
    model.compile(optimizer, "mse", jit_compile=False)
    model.train_on_batch(np.ones((4, 8)), np.ones((4, 16)))
    report = nv_norms_rewriter.report()
    assert [record.direction for record in report] == ["forward", "backward"]
    assert not report.refused


def test_epsilon_outside_of_the_root_is_reported() -> None:
    norm = tf.function(lambda x: x / (tf.sqrt(tf.reduce_mean(x * x, -1, keepdims=True)) + 1e-3))
    norm(tf.ones((4, 8)))
    (record,) = nv_norms_rewriter.report()
    assert (record.kind, record.reason) == ("rms_norm", "no_output")


def test_graph_without_norms_leaves_no_record() -> None:
    tf.function(lambda x: tf.nn.softmax(tf.math.rsqrt(x) * 3.0 + x))(tf.ones((4, 8)))
    assert list(nv_norms_rewriter.report()) == []


def test_report_is_a_sequence() -> None:
    report = Report([FUSED, REFUSED, FUSED], ["a notice"])
    assert len(report) == 3 and report[1] is REFUSED and report[-1] is FUSED
    assert list(report[1:]) == [REFUSED, FUSED]
    assert list(report.fused) == [FUSED, FUSED] and list(report.refused) == [REFUSED]
    assert report.fused.notices == ("a notice",)
    assert report.counts == {"layer_norm forward": 2, "some_reason": 1}
    assert FUSED in report


@pytest.mark.parametrize(
    ("records", "summary"),
    [
        ([], "0 normalizations found, 0 fused"),
        ([FUSED], "1 normalization found, 1 fused (1 layer_norm forward)"),
        ([REFUSED], "1 normalization found, 0 fused; 1 not fused (1 some_reason)"),
        (
            [FUSED, REFUSED, FUSED],
            "3 normalizations found, 2 fused (2 layer_norm forward); 1 not fused (1 some_reason)",
        ),
    ],
)
def test_summary_is_one_line(records: list[Record], summary: str) -> None:
    assert Report(records).summary() == summary
    assert summary in repr(Report(records))


def test_printed_report_tells_what_a_user_asks_for() -> None:
    text = str(Report([FUSED, REFUSED], ["the driver is too old"]))
    for part in ("layer_norm forward", "model/norm/y:0", "1,2", "1e-05", "bfloat16", "CPU:0"):
        assert part in text
    assert "some_reason" in text and "The epsilon is a variable." in " ".join(text.split())
    assert "2 normalizations found, 1 fused" in text
    assert text.endswith("Note: the driver is too old")
    assert "\x1b" not in text


def test_names_that_look_like_markup_are_printed_as_they_are() -> None:
    strange = dataclasses.replace(FUSED, outputs=("[bold]y[/bold]:0",))
    assert "[bold]y[/bold]:0" in str(Report([strange], ["a [red]notice"]))
    assert "a [red]notice" in str(Report([strange], ["a [red]notice"]))


def test_long_names_are_folded_not_cut() -> None:
    name = "/".join(f"transformer_layer_{i}" for i in range(20)) + ":0"
    text = str(Report([dataclasses.replace(FUSED, outputs=(name,))]))
    assert "transformer_layer_19" in text.replace("\n", "").replace(" ", "")


class _OnlyWrites:
    """What a program may put in the place of stdout."""

    def __init__(self, encoding: str | None = None) -> None:
        if encoding:
            self.encoding = encoding

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None: ...


@pytest.mark.parametrize("stdout", [None, _OnlyWrites(), io.StringIO()], ids=type)
def test_stdout_that_is_no_file(monkeypatch: pytest.MonkeyPatch, stdout: object) -> None:
    if isinstance(stdout, io.StringIO):
        stdout.close()
    monkeypatch.setattr(sys, "stdout", stdout)
    text = str(Report([FUSED]))
    monkeypatch.undo()
    assert "model/norm/y:0" in text and "1 fused" in text


def test_stdout_whose_encoding_has_no_lines_of_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", _OnlyWrites("latin-1"))
    text = str(Report([FUSED, dataclasses.replace(FUSED, outputs=("m\u03b1:0",))]))
    monkeypatch.undo()
    text.encode("latin-1")
    assert "model/norm/y:0" in text and "m?:0" in text


def test_a_long_report_prints_its_latest_records() -> None:
    records = [dataclasses.replace(FUSED, outputs=(f"y_{i}:0",)) for i in range(501)]
    text = str(Report(records))
    assert "The latest 500 of 501 records" in text and "501 fused" in text
    assert "y_500:0" in text and "y_1:0" in text and "y_0:0" not in text


def test_empty_report_prints_a_line() -> None:
    assert str(Report()) == "0 normalizations found, 0 fused"


def test_a_fused_norm_whose_root_is_checked_for_numbers_is_not_refused_beside() -> None:
    """tf.debugging.enable_check_numerics reads each tensor, so that the root stays in the graph."""
    counts, _ = result("""
        import json
        import keras, tensorflow as tf
        import nv_norms_rewriter

        tf.debugging.enable_check_numerics()
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Dense(8), keras.layers.GroupNormalization(4), keras.layers.Dense(3)]
        model = keras.Sequential([keras.Input((6, 8)), *layers])
        model.compile("sgd", "mse", jit_compile=False)
        model.fit(tf.random.normal((4, 6, 8)), tf.zeros((4, 6, 3)), verbose=0)
        report = nv_norms_rewriter.report()
        print(json.dumps([len(report.fused), [r.reason for r in report.refused]]))
    """)
    assert counts == [2, []]
