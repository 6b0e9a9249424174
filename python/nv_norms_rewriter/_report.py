"""What the rewriter found: one record per normalization, and a readable table of them."""

from __future__ import annotations

import collections
import dataclasses
import io
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any, overload

from . import _library, _process, _records

# TensorFlow's C++ code has its own names for these types.
_PYTHON_NAMES = {"half": "float16", "float": "float32", "double": "float64"}

# TensorFlow's options that switch Grappler, or plugins in it, off.
_OPTIONS_OF_OTHERS = {"disable_meta_optimizer": True, "use_plugin_optimizers": False}
_ON_AGAIN = (
    "nv_norms_rewriter.enable() switches it on for functions that have not run yet "
    "(an import does, unless NV_NORMS_REWRITER=0 is in the environment)"
)
# The rows of a table that is printed: 10,000 records would take ten seconds.
_MOST_ROWS = 500
# Smaller graphs stay as they are; TensorFlow's default.
_MIN_NODES = ("min_graph_nodes", 4)


@dataclasses.dataclass(frozen=True)
class Record:
    """One normalization that was found in a graph, or a change of layout around fused ones.

    Attributes:
      kind: "layer_norm", "instance_norm", "group_norm" or "rms_norm"; "normalization" where one
        was refused of which that is not known. Or "layout": fused ones run channels first instead
        of last (or the other way round), because that takes fewer Transposes; inputs are then the
        Transposes that went, outputs the normalizations.
      direction: "forward" or "backward"; "" for a layout.
      fused: whether it was replaced by a fused op.
      reason: why not, as a name that stays the same between versions; "" when fused.
      detail: the same as a sentence; "" when fused.
      inputs: names of the tensors that it reads ("node:0"): x, then gamma and beta if any.
      outputs: names of the tensors that it computes.
      axes: the normalized axes of x.
      epsilon: the constant under the root, as the graph holds it: 1e-3 in float32 is
        0.0010000000474974513.
      dtype: type of x ("float32").
      device: device of the ops, "" where the graph does not say.
      graph: name of the graph or function.
      where: "graph" when TensorFlow optimized the graph before running it, "xla" when a function
        was traced that XLA compiles, "trace" when another function was traced (because another
        plugin holds the device type), "tape" when TensorFlow made a function of its own of its
        gradient: for a tape outside of a function, and in loops and branches. (That gradient is
        not found but made, when it is asked for.)
      transposes: for a layout, the Transposes of its region before and after.
      negative_slope: of the LeakyRelu that is computed inside the fused op (0: a Relu), whose
        output is then in outputs; 1 where there is none.
      silu: whether that is computed inside in its place.
      leaves_dx: of a gradient that is fused but for that of x, which stays with TensorFlow's ops,
        as something else is differentiated with it: a variance that is used again, say.
    """

    kind: str
    direction: str
    fused: bool
    reason: str
    detail: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    axes: tuple[int, ...]
    epsilon: float
    dtype: str
    device: str
    graph: str
    where: str = "graph"
    transposes: tuple[int, int] = (0, 0)
    negative_slope: float = 1.0
    silu: bool = False
    leaves_dx: bool = False

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Record:
        """A record from the core library's JSON; keys that it does not know are left out."""
        names = [field.name for field in dataclasses.fields(cls)]
        known = {name: value[name] for name in names if name in value}
        for name in {"inputs", "outputs", "axes", "transposes"} & set(known):
            known[name] = tuple(known[name])
        known["dtype"] = _PYTHON_NAMES.get(known["dtype"], known["dtype"])
        return cls(**known)


class Report(Sequence[Record]):
    """The records since import (or clear_report()), in the order in which they were found.

    A sequence of Record; str() and print() give a table and a summary, rich prints it in colour.

    Attributes:
      notices: sentences about what the rewriter cannot do in this process (it is off, another
        plugin holds a device type, a driver is too old, an option of TensorFlow's keeps graphs from
        it), and what a program can do about the time that XLA's convolutions of volumes take.
    """

    def __init__(self, records: Iterable[Record] = (), notices: Iterable[str] = ()) -> None:
        self._records = tuple(records)
        self.notices = tuple(notices)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> Report: ...
    def __getitem__(self, index: int | slice) -> Record | Report:
        if isinstance(index, slice):
            return Report(self._records[index], self.notices)
        return self._records[index]

    def __len__(self) -> int:
        return len(self._records)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Report) and self._records == other._records

    __hash__ = None  # type: ignore[assignment]

    @property
    def fused(self) -> Report:
        """The records of what was fused."""
        return Report((r for r in self if r.fused), self.notices)

    @property
    def refused(self) -> Report:
        """The records of what was found and left as it is."""
        return Report((r for r in self if not r.fused), self.notices)

    @property
    def counts(self) -> dict[str, int]:
        """How many of each: "layer_norm forward" and so on if fused, else the reason."""
        return dict(
            collections.Counter(
                f"{r.kind} {r.direction}".strip() if r.fused else r.reason for r in self
            )
        )

    def summary(self) -> str:
        """One line: how many were found, how many fused, and why the others were not."""
        found = Report(r for r in self if r.kind != "layout")
        fused, refused = found.fused, found.refused
        line = f"{len(found)} normalization{'' if len(found) == 1 else 's'} found"
        line += f", {len(fused)} fused"
        if fused:
            line += f" ({_listed(fused.counts)})"
        if refused:
            line += f"; {len(refused)} not fused ({_listed(refused.counts)})"
        layouts = [r.transposes for r in self if r.kind == "layout" and r.fused]
        if layouts:
            line += f"; {sum(before - after for before, after in layouts)} Transposes removed"
        return line

    def table(self) -> Any:
        """The records as a rich.table.Table."""
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for name in ("normalization", "output", "axes", "epsilon", "dtype", "device"):
            table.add_column(name, overflow="fold", ratio=1 if name == "output" else None)
        table.add_column("", overflow="fold", max_width=32)
        for r in self:
            verdict = (
                Text(_verdict(r), "green") if r.fused else Text(f"{r.reason}: {r.detail}", "yellow")
            )
            table.add_row(
                f"{r.kind} {r.direction}".strip(),
                Text(", ".join(r.outputs)),
                ",".join(map(str, r.axes)),
                f"{r.epsilon:g}" if r.kind != "layout" else "",
                r.dtype,
                r.device.rpartition("device:")[2] + (" XLA" if r.where == "xla" else ""),
                verdict,
            )
        return table

    def __rich_console__(self, console: Any, options: Any) -> Iterable[Any]:
        from rich.text import Text

        if len(self) > _MOST_ROWS:
            yield Text(
                f"The latest {_MOST_ROWS} of {len(self)} records; report()[:N] has the first N."
            )
        if len(self):
            yield self[-_MOST_ROWS:].table()
        yield Text(self.summary())
        for notice in self.notices:
            yield Text(f"Note: {notice}")

    def __str__(self) -> str:
        from rich.console import Console

        # Lines of a table are other characters where stdout has none for them.
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        text = io.TextIOWrapper(io.BytesIO(), encoding, errors="replace", newline="\n")
        Console(file=text, width=width(), color_system=None, force_terminal=False).print(self)
        text.seek(0)
        lines = (line.rstrip() for line in text.read().splitlines())
        return "\n".join(lines).strip("\n")

    def __repr__(self) -> str:
        return f"<Report: {self.summary()}>"


def width() -> int:
    """Columns of the terminal; elsewhere at least as many as most names want."""
    columns = shutil.get_terminal_size().columns
    try:
        is_terminal = sys.stdout.isatty()
    except (AttributeError, ValueError):  # there is none, it is a program's own, it is closed
        is_terminal = False
    return columns if is_terminal else max(120, columns)


def _verdict(r: Record) -> str:
    if r.kind != "layout":
        return "fused" + (" but for dx" if r.leaves_dx else "") + _activation(r)
    return f"{r.transposes[1]} Transposes instead of {r.transposes[0]}"


def _activation(r: Record) -> str:
    if r.silu:
        return " with silu"
    if r.negative_slope == 1:
        return ""
    return " with relu" if r.negative_slope == 0 else f" with leaky_relu({r.negative_slope:g})"


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def report() -> Report:
    """What was found and fused in this process since import or clear_report().

    Returns:
      A Report: a sequence of Record that prints as a table. A function appears here once it has
        run.
    """
    if _process.loaded_core() is None:
        return Report(notices=[f"the rewriter is off: it was not loaded. {_ON_AGAIN}"])
    memory = _process.state()
    _look_at_gpus(memory)
    values, dropped = _records.remembered(_library.core())
    notices = list(memory["notices"])
    if not _library.core().is_enabled():
        notices.append(f"the rewriter is off: disable() or disabled() did that. {_ON_AGAIN}")
    notices += _switched_off()
    forward = [value for value in values if value["direction"] == "forward"]
    if turned := sum(value.get(_records.TURNED, False) for value in forward):
        notices.append(
            f"XLA runs 3-D convolutions channels first, so {turned} normalizations run so, too. "
            "cuDNN turns tensors around for each of these convolutions; "
            "XLA_FLAGS=--xla_gpu_force_conv_nhwc=true in the environment has all convolutions "
            "channels last: try whether it is faster"
        )
    if dropped:
        notices.append(f"the report holds the latest {len(values)} records; {dropped} came before")
    return Report((Record.from_json(value) for value in values), notices)


def _switched_off() -> list[str]:
    """Sentences about options of TensorFlow's that keep graphs from us, as they are set now."""
    import tensorflow as tf

    if not _tensorflow_has_started():  # asking would list the devices
        return []
    options = tf.config.optimizer.get_experimental_options()
    name, usual = _MIN_NODES
    smallest = options.get(name, usual)
    few = [
        f"tf.config.optimizer.set_experimental_options has {name!r}: {smallest}, so TensorFlow "
        "does not optimize graphs of fewer nodes: in these nothing is fused"
    ]
    return (few if smallest > usual else []) + [
        f"tf.config.optimizer.set_experimental_options has {name!r}: {value}, so TensorFlow calls "
        "no plugin's optimizer: while it is set, nothing is fused in the graphs that TensorFlow "
        "optimizes, only in functions when they are traced (for XLA, or for a tape)"
        for name, value in _OPTIONS_OF_OTHERS.items()
        if options.get(name) is value
    ]


def _tensorflow_has_started() -> bool:
    from tensorflow.python.eager import context

    return getattr(context.context(), "_initialized", False)


def _look_at_gpus(memory: dict[str, Any]) -> None:
    """What is wrong with them shows only once TensorFlow has started them."""
    import tensorflow as tf

    if (
        _tensorflow_has_started()
        and "GPU" in memory["plugins"]
        and tf.config.list_logical_devices("GPU")
    ):
        _library.gpus_are_usable()


def clear_report() -> None:
    """Forgets all records; what was fused stays fused."""
    if _process.loaded_core() is not None:
        _records.forget(_library.core())
