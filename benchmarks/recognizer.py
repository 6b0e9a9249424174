"""What the rewriter costs: its share of Grappler's time, and its time over the size of a graph.

    python benchmarks/recognizer.py            # all of it, as tables
    python benchmarks/recognizer.py --write    # and into benchmarks/results/recognizer.{md,csv}

Share: keras-hub's BertBackbone in its base configuration (12 layers, 768 wide, random weights),
inference and a training step (forward and gradient), each traced and optimized by Grappler several
times on the CPU. TF_CPP_VMODULE=meta_optimizer=1,remapper=1 makes TensorFlow log a line after each
optimizer; one clock, that of the log, gives both numbers: Grappler's time is from its first line
to its last, ours from the line before our pass to the line after it. So a pass includes what
TensorFlow does to call a plugin (serializing the graph, parsing the result) and its inference of
the graph's shapes; the recognizer's own time, edits included, is what our log line says.

Size: one transformer block (two layer norms, attention, feed-forward), with its gradient or
without, is copied until the graph has so many nodes, and rewrite() is timed on it: the copies one
behind the other or side by side; with constants of their own or, as TensorFlow leaves them, shared.
The parts of the time are told apart by taking away work: without any inverse root the pass stops
before shape inference; with one that is no norm's it stops after it.

Share over size: the same graphs, chained with shared constants, go through all of Grappler in one
process, and the share is computed from its log as above. What a larger graph costs per node beyond
a smaller one because it leaves the caches, it costs TensorFlow's passes, too.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from recognizer_graphs import copies

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
if str(ROOT / "python") not in sys.path:
    sys.path.append(str(ROOT / "python"))

SIZES = (1_000, 3_000, 10_000, 30_000, 100_000)
REPEATS = 5
PREDICTED = (
    "Predicted: below 5 % of Grappler's time, inference and training; time linear in the graph's "
    "size (a hundred times the nodes, at most 120 times the time), shared constants or not."
)


class Share(NamedTuple):
    """Medians over the repeats, in milliseconds."""

    mode: str
    nodes: int
    fused: int
    grappler: float
    first: float
    second: float
    inference: float
    recognizer: float

    @property
    def share(self) -> float:
        return self.recognizer / self.grappler

    @property
    def whole(self) -> float:
        return (self.first + self.second) / self.grappler


class Growth(NamedTuple):
    """Milliseconds for one graph; the run of the median share."""

    mode: str
    nodes: int
    grappler: float
    whole: float
    inference: float
    recognizer: float


class Point(NamedTuple):
    """Seconds for one graph; the best of three (of one, if it takes long)."""

    mode: str
    arrangement: str
    constants: str
    nodes: int
    fused: int
    parse: float
    shapes: float
    recognize: float

    @property
    def total(self) -> float:
        return self.parse + self.shapes + self.recognize


# ------------------------------------------------------------------------------------------ share


def _optimize_bert(mode: str) -> None:
    """What the child process does: lets Grappler optimize the model's graph REPEATS times."""
    import keras_hub
    import tensorflow as tf

    import nv_norms_rewriter

    model = keras_hub.models.BertBackbone(
        vocabulary_size=30522, num_layers=12, num_heads=12, hidden_dim=768, intermediate_dim=3072
    )
    ones = tf.ones((1, 16), tf.int32)
    inputs = {"token_ids": ones, "segment_ids": tf.zeros_like(ones), "padding_mask": ones}

    def infer(x: dict) -> dict:
        return model(x, training=False)

    def train(x: dict) -> tuple:
        with tf.GradientTape() as tape:
            out = model(x, training=True)
            loss = sum(tf.reduce_mean(tf.square(out[key])) for key in out)
        return loss, tape.gradient(loss, [v.value for v in model.trainable_variables])

    for _ in range(REPEATS):
        nv_norms_rewriter.clear_report()
        tf.function({"infer": infer, "train": train}[mode])(inputs)
        print("FUSED", len(nv_norms_rewriter.report().fused), flush=True)


_LINE = re.compile(r"^[IWE]\d+ [\d:]*?:?(\d+\.\d+)\s+\d+ (\w+\.cc):\d+\] (.*)$")


def _log_lines(log: str) -> Iterator[tuple[float, str, str]]:
    """(seconds, file, text) of each line of TensorFlow's log that is one."""
    for line in log.splitlines():
        match = _LINE.match(line)
        if match:
            yield float(match[1]), match[2], match[3]


def _passes(log: str) -> Iterator[tuple[float, list[float], int, list[float]]]:
    """(Grappler's milliseconds, ours for each pass, nodes, [shapes, the rest]) of large graphs."""
    start = end = before = 0.0
    ours: list[float] = []
    nodes, pending, parts = 0, False, [0.0, 0.0]
    for when, file, text in _log_lines(log):
        if file == "meta_optimizer.cc":
            if text.startswith("Starting optimization for grappler item"):
                if nodes > 500:
                    yield 1e3 * (end - start), ours, nodes, parts
                start, ours, nodes, parts = when, [], 0, [0.0, 0.0]
            elif pending:
                ours.append(1e3 * (when - before))
            pending, before, end = False, when, when
        elif file == "remapper.cc" and text.startswith("Graph "):
            pending = True
            nodes = nodes or int(re.search(r": (\d+) nodes", text)[1])
            told = re.search(r"shapes (\d+) us, the rest (\d+) us", text)
            if told:
                parts = [parts[i] + int(told[i + 1]) / 1e3 for i in range(2)]
    if nodes > 500:
        yield 1e3 * (end - start), ours, nodes, parts


def _progress(text: str) -> None:
    print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def _child(mode: str, *options: str) -> tuple[str, str]:
    """(log, output) of a process that lets Grappler work."""
    environment = {
        **os.environ,
        "TF_CPP_MIN_LOG_LEVEL": "0",
        "TF_CPP_VMODULE": "meta_optimizer=1,remapper=1",
        "CUDA_VISIBLE_DEVICES": "",
        "NV_NORMS_REWRITER": "1",
    }
    command = [sys.executable, __file__, "--child", mode, *options]
    child = subprocess.run(command, env=environment, text=True, capture_output=True)
    if child.returncode != 0:
        sys.exit(f"the model did not run:\n{child.stderr[-3000:]}")
    return child.stderr, child.stdout


def measure_share(mode: str) -> Share:
    _progress(f"{mode}: BERT-base through Grappler, {REPEATS} times")
    log, printed = _child(mode)
    runs = [run for run in _passes(log) if len(run[1]) == 2]
    if not runs:
        sys.exit(f"the log holds no passes of ours:\n{log[-3000:]}")
    shares = sorted(runs, key=lambda run: sum(run[1]) / run[0])
    grappler, (first, second), nodes, parts = shares[len(shares) // 2]  # the median share's run
    fused = int(re.findall(r"FUSED (\d+)", printed)[-1])
    return Share(mode, nodes, fused, grappler, first, second, *parts)


# -------------------------------------------------------------------------------- share over size


def _optimize_copies(mode: str, largest: int) -> None:
    """What the child process does: lets Grappler optimize graphs of growing size."""
    from tensorflow.core.protobuf import config_pb2, meta_graph_pb2
    from tensorflow.python.grappler import tf_optimizer

    import nv_norms_rewriter

    nv_norms_rewriter.configure(saved_models="fused")  # else the plugin leaves alone what it gives
    config = config_pb2.ConfigProto()
    config.graph_options.rewrite_options.meta_optimizer_timeout_ms = -1
    for nodes in (size for size in SIZES if size <= largest):
        graph_def, count = copies(mode == "train", nodes, chained=True, shared=True)
        graph = meta_graph_pb2.MetaGraphDef(graph_def=graph_def)
        for node in graph.graph_def.node:
            node.device = "/job:localhost/replica:0/task:0/device:CPU:0"
        ends = [f"{count - 1}/y"] + (["0/dx"] if mode == "train" else [])
        graph.collection_def["train_op"].node_list.value.extend(ends)
        for _ in range(3 if nodes < 10_000 else 1):
            nv_norms_rewriter.clear_report()
            tf_optimizer.OptimizeGraph(config, graph)


def measure_growth(mode: str, largest: int) -> list[Growth]:
    _progress(f"{mode}: {min(largest, SIZES[-1])} nodes through Grappler")
    runs: dict[int, list] = {}
    for run in _passes(_child(mode, "--growth", "--largest", str(largest))[0]):
        if len(run[1]) == 2:
            runs.setdefault(run[2], []).append(run)
    rows = []
    for nodes, same in runs.items():
        same.sort(key=lambda run: sum(run[1]) / run[0])
        grappler, passes, _, (inference, rest) = same[len(same) // 2]
        rows.append(Growth(mode, nodes, grappler, sum(passes), inference, rest))
    return rows


# ------------------------------------------------------------------------------------------- size


def _best(work: Callable[[], object]) -> float:
    times: list[float] = []
    while len(times) < 3 and sum(times) < 10.0:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def measure_size(mode: str, nodes: int, chained: bool, shared: bool) -> Point:
    from nv_norms_rewriter import _library

    graph, _ = copies(mode == "train", nodes, chained, shared)
    real = graph.SerializeToString()
    for node in graph.node:
        if node.op == "Rsqrt":
            node.op = "Exp"
    none = graph.SerializeToString()
    mean = next(node.name for node in graph.node if node.op == "Mean")
    root = graph.node.add(name="root", op="Rsqrt", input=[mean])
    root.attr["T"].CopyFrom(graph.node[0].attr["dtype"])
    one = graph.SerializeToString()
    _progress(f"{mode}: rewriting {len(graph.node)} nodes")
    rewrite = _library.core().rewrite
    fused = 0

    def whole() -> None:
        nonlocal fused
        fused = sum(bool(record["fused"]) for record in rewrite(real, "", "", True)[1])

    total = _best(whole)
    parse = _best(lambda: rewrite(none, "", "", True))
    shapes = _best(lambda: rewrite(one, "", "", True))
    return Point(
        mode,
        "chained" if chained else "side by side",
        "shared" if shared else "own",
        len(graph.node) - 1,
        fused,
        parse,
        max(shapes - parse, 0.0),
        max(total - shapes, 0.0),
    )


# ----------------------------------------------------------------------------------------- tables


def _machine() -> str:
    import keras
    import keras_hub
    import tensorflow as tf

    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    today = datetime.datetime.now(datetime.timezone.utc).date()
    return (
        f"{today}; {os.cpu_count()} cores of {model[1] if model else platform.processor()}; "
        f"load {os.getloadavg()[0]:.1f}; "
        f"TensorFlow {tf.__version__}, Keras {keras.__version__}, keras-hub "
        f"{keras_hub.__version__}, Python {platform.python_version()}."
    )


def _markdown(shares: list[Share], growth: list[Growth], points: list[Point]) -> str:
    lines = ["# What the rewriter costs", "", _machine(), "", PREDICTED, ""]
    lines += [
        f"## Share of Grappler's time on BERT-base (run of the median share out of {REPEATS})",
        "",
        "| graph | nodes before us | fused | Grappler | recognizer | share "
        "| 1st pass, whole | its shape inference | 2nd pass, whole | share |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for s in shares:
        lines.append(
            f"| {s.mode} | {s.nodes} | {s.fused} | {s.grappler:.0f} ms | {s.recognizer:.1f} ms "
            f"| {s.share:.1%} | {s.first:.1f} ms | {s.inference:.1f} ms | {s.second:.1f} ms "
            f"| {s.whole:.1%} |"
        )
    lines += [
        "",
        "## Share of Grappler's time over the graph's size",
        "",
        "| graph | nodes before us | Grappler | per node | recognizer | share | both passes, whole "
        "| their shape inference | share |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for g in growth:
        lines.append(
            f"| {g.mode} | {g.nodes} | {g.grappler:.0f} ms | {1e3 * g.grappler / g.nodes:.0f} us "
            f"| {g.recognizer:.1f} ms | {g.recognizer / g.grappler:.1%} | {g.whole:.1f} ms "
            f"| {g.inference:.1f} ms | {g.whole / g.grappler:.1%} |"
        )
    lines += [
        "",
        "## Time of rewrite() over the graph's size (best of 3)",
        "",
        "| graph | copies | constants | nodes | fused | read, write | shapes | recognize, edit "
        "| total | per node |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for p in points:
        lines.append(
            f"| {p.mode} | {p.arrangement} | {p.constants} | {p.nodes} | {p.fused} "
            f"| {p.parse:.3f} s | {p.shapes:.3f} s | {p.recognize:.3f} s | {p.total:.3f} s "
            f"| {1e6 * p.total / p.nodes:.1f} us |"
        )
    method = "\n".join((__doc__ or "").strip().splitlines()[5:])
    return "\n".join([*lines, "", "## How it was measured", "", method, ""])


def _write_csv(path: Path, shares: list[Share], growth: list[Growth], points: list[Point]) -> None:
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["what", *Share._fields, "share", "whole"])
        out.writerows(["share", *s, s.share, s.whole] for s in shares)
        out.writerow(["what", *Growth._fields])
        out.writerows(["growth", *g] for g in growth)
        out.writerow(["what", *Point._fields])
        out.writerows(["size", *p] for p in points)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="into benchmarks/results/")
    parser.add_argument("--largest", type=int, default=SIZES[-1], help="nodes")
    parser.add_argument("--only", choices=["share", "growth", "size"])
    parser.add_argument("--child", choices=["infer", "train"], help=argparse.SUPPRESS)
    parser.add_argument("--growth", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        if options.growth:
            return _optimize_copies(options.child, options.largest)
        return _optimize_bert(options.child)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ["NV_NORMS_REWRITER"] = "0"
    modes = ("infer", "train")
    shares = [measure_share(m) for m in modes] if options.only in (None, "share") else []
    growth = []
    if options.only in (None, "growth"):
        growth = [row for mode in modes for row in measure_growth(mode, options.largest)]
    points = []
    if options.only in (None, "size"):
        sizes = [size for size in SIZES if size <= options.largest]
        for mode in modes:
            points += [measure_size(mode, size, True, True) for size in sizes]
            other = min(10_000, sizes[-1])
            points += [measure_size(mode, other, c, s) for c, s in [(True, False), (False, True)]]
    text = _markdown(shares, growth, points)
    print(text)
    if options.write:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "recognizer.md").write_text(text)
        _write_csv(RESULTS / "recognizer.csv", shares, growth, points)


if __name__ == "__main__":
    main()
