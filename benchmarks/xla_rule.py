"""Writes the table by which the rewriter decides what to fuse inside XLA on a GPU.

Usage: python benchmarks/xla_rule.py RESULTS.md ... [--out FILE]

Reads the lines that benchmarks/xla_layers.py printed; where two have the same case, the later one
counts.
"""

from __future__ import annotations

import argparse
import math
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[1]
OUT = ROOT / "python" / "nv_norms_rewriter" / "_xla_measured_gpu.py"

_HEAD = '''\
"""What benchmarks/xla_layers.py measured inside XLA on a GPU; written by benchmarks/xla_rule.py.

From {sources}; each line is a _xla_rule_gpu.Measured.
"""

# ruff: noqa: E501

# fmt: off
MEASURED = (
'''
_TAIL = ")\n# fmt: on\n"

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def measured(line: str) -> tuple[object, ...] | None:
    """The case on a line of a table, as the fields of Measured; None for any other line."""
    cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
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


def module(sources: list[pathlib.Path]) -> str:
    """The text of the module that holds the table."""
    cases: dict[tuple[object, ...], tuple[object, ...]] = {}
    for source in sources:
        for line in source.read_text().splitlines():
            if case := measured(line):
                cases[(*case[:8], case[9])] = case
    if not cases:
        raise SystemExit(f"{', '.join(map(str, sources))}: no line of a table")
    lines = [f"    {case!r},\n".replace("'", '"') for case in sorted(cases.values())]
    names = ", ".join(str(s.resolve().relative_to(ROOT)) for s in sources)
    return _HEAD.format(sources=names) + "".join(lines) + _TAIL


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sources", nargs="+", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, default=OUT)
    options = parser.parse_args()
    options.out.write_text(module(options.sources))


if __name__ == "__main__":
    main()
