"""Writes the tables by which the rewriter decides what to fuse inside XLA.

Usage: python benchmarks/xla_rule.py {gpu,cpu} RESULTS ... [--out FILE]

Reads the lines that benchmarks/xla_layers.py (GPU) or xla_cpu.py (CPU) printed or left in a CSV
file; where two have the same case, the later one counts.
"""

from __future__ import annotations

import argparse
import csv
import math
import pathlib
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).resolve().parents[1]
# The module and the benchmark of each type of device.
OUT = {
    device: ROOT / "python" / "nv_norms_rewriter" / f"_xla_measured_{device}.py"
    for device in ("gpu", "cpu")
}
_BENCHMARK = {"gpu": "xla_layers.py", "cpu": "xla_cpu.py"}

_HEAD = '''\
"""What benchmarks/{benchmark} measured inside XLA on a {device}; written by benchmarks/xla_rule.py.

From {sources}; each line is a _xla_rule.Measured.
"""

# ruff: noqa: E501

# fmt: off
MEASURED = (
'''
_TAIL = ")\n# fmt: on\n"

_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


def lines(source: pathlib.Path) -> list[list[str]]:
    """The cells of each line of a Markdown or CSV table."""
    with source.open(newline="") as file:
        if source.suffix == ".csv":
            return list(csv.reader(file))
        return [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in file]


def measured(cells: Sequence[str]) -> tuple[object, ...] | None:
    """The case on a line of a table, as the fields of Measured; None for any other line."""
    if len(cells) < 7 or cells[2] not in _BYTES:
        return None
    kind, *words = cells[0].split()  # "layer", "group 32", "group 32 first"
    shape = [int(size) for size in cells[1].split(" x ")]
    first = "first" in words
    if kind in ("layer", "rms"):
        layout, size = "rows", shape[-1]
        run = size
    else:
        layout = "channels first" if first else "channels last"
        channels = shape[1 if first else -1]
        size = math.prod(shape) // shape[0] // channels
        if kind == "group":
            size *= channels // int(words[0])
        run = size if first else channels
    return (
        f"{kind}_norm",
        layout,
        _BYTES[cells[2]],
        "backward" in cells[3],
        cells[4],
        run,
        size,
        math.prod(shape),
        round(float(cells[5]) / float(cells[6]), 2),
        f"{cells[1]} {cells[2]}",
    )


def module(device: str, sources: list[pathlib.Path]) -> str:
    """The text of the module that holds the table of "gpu" or "cpu"."""
    cases: dict[tuple[object, ...], tuple[object, ...]] = {}
    for source in sources:
        for cells in lines(source):
            if case := measured(cells):
                cases[(*case[:8], case[9])] = case
    if not cases:
        raise SystemExit(f"{', '.join(map(str, sources))}: no line of a table")
    text = [f"    {case!r},\n".replace("'", '"') for case in sorted(cases.values())]
    names = ", ".join(str(s.resolve().relative_to(ROOT)) for s in sources)
    head = _HEAD.format(benchmark=_BENCHMARK[device], device=device.upper(), sources=names)
    return head + "".join(text) + _TAIL


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("device", choices=sorted(OUT))
    parser.add_argument("sources", nargs="+", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, help="another file than the rewriter's own")
    options = parser.parse_args()
    out = options.out or OUT[options.device]
    out.write_text(module(options.device, options.sources))


if __name__ == "__main__":
    main()
