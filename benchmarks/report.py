"""Tables (Markdown) and plots (SVG) from the CSV files that the benchmarks wrote.

Usage: python benchmarks/report.py benchmarks/results/NAME*.csv [--plots FOLDER]

A table for each benchmark in the files goes to stdout, a plot of times relative to TensorFlow's own
to FOLDER/BENCHMARK.svg.
"""

from __future__ import annotations

import argparse
import csv
import math
import pathlib
from collections import defaultdict
from typing import NamedTuple


class View(NamedTuple):
    """How the rows of one benchmark become a table."""

    title: str
    key: tuple[str, ...]  # columns that name a line of the table
    column: str  # whose values are the table's columns
    value: str  # the column that fills the table, or a format of several
    base: str = ""  # the column that a plot of the table is relative to, if there is to be one


_LAYER = ("layer", "batch", "size", "mode")
_FUSED = "{fused_forward}+{fused_backward}"
_MODEL = ("model", "mode", "size", "policy")
_GRAPH = ("model", "policy", "batch")
VIEWS = {
    "layer_norm": [View("Layer norm, ms a step", ("shape", "policy"), "way", "ms", "TF function")],
    "instance_norm": [
        View("Instance norm, ms a step", ("shape", "layout", "policy"), "way", "ms", "TF function")
    ],
    "dense_layers": [
        View("Five dense layers, ms a step", ("batch", "units"), "norm", "ms", "no norm"),
        View("The same, relative to no norm", ("batch", "units"), "norm", "ratio"),
    ],
    "keras_layers": [
        View("Three Keras layers on images, ms a step", _LAYER, "way", "ms", "current")
    ],
    "variance": [
        View("Largest error of y against float64", ("input",), "formula", "largest_error")
    ],
    "models": [
        View("Models, ms a step", _MODEL, "way", "ms", "stock"),
        View("Norms that were fused, forward + backward", _MODEL, "way", _FUSED + " of {norms}"),
        View("What a step of them holds on the GPU at its peak, MiB", _MODEL, "way", "peak_mib"),
        View("Largest difference of their losses, or y, to the first", _MODEL, "way", "apart"),
    ],
    "layout": [
        View("Transposes in training steps", _GRAPH, "way", "transposes"),
        View("The MiB that they transpose", _GRAPH, "way", "mib"),
    ],
    "xla_training": [
        View(
            "model.fit as Keras compiles it, ms a step", ("model", "policy"), "way", "ms", "stock"
        ),
        View("Norms that were fused, forward + backward", ("model", "policy"), "way", _FUSED),
        View("Largest difference of its losses", ("model", "policy"), "way", "apart"),
    ],
}
Table = dict[tuple[str, ...], dict[str, str]]


def read(files: list[pathlib.Path]) -> dict[tuple[str, str], list[dict[str, str]]]:
    """Rows by benchmark and by where and when they were measured."""
    rows = defaultdict(list)
    for file in files:
        with file.open(newline="") as lines:
            for row in csv.DictReader(lines):
                where = (
                    f"{row['machine']}; TensorFlow {row['tensorflow']}, Keras {row['keras']}; "
                    f"{row['date']}; commit {row['commit']}"
                )
                rows[row["benchmark"], where].append(row)
    return rows


def tabulate(view: View, rows: list[dict[str, str]]) -> Table:
    """A line for each key; of a cell that was measured again, the last time."""
    table: Table = defaultdict(dict)
    for row in rows:
        value = view.value.format(**row) if "{" in view.value else row[view.value]
        if value:
            table[tuple(row[name] for name in view.key)][row[view.column]] = value
    return table


def markdown(view: View, where: str, table: Table) -> str:
    columns = list(dict.fromkeys(name for line in table.values() for name in line))
    lines = [f"**{view.title}** ({where})", ""]
    lines.append("| " + " | ".join([*view.key, *columns]) + " |")
    lines.append("|---" * len(view.key) + "|---:" * len(columns) + "|")
    for key, line in table.items():
        cells = [_short(line.get(name, "")) for name in columns]
        lines.append("| " + " | ".join([*key, *cells]) + " |")
    return "\n".join([*lines, ""])


def _short(value: str) -> str:
    if value.isdigit():
        return value
    try:
        number = float(value)
    except ValueError:
        return value
    return value if "e" in value or number == float("inf") else f"{number:.3g}"


_COLORS = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#999999", "#000000"]
_COLORS += ["#dd8844", "#77bb99"]
_BAR, _GAP, _DOUBLING, _LEFT, _TOP = 9, 14, 28, 90, 80  # pixels


def color(way: int) -> str:
    return _COLORS[way % len(_COLORS)]


def plot(view: View, where: str, table: Table) -> str:
    """An SVG of bars: time of each way relative to the base, on a scale of doublings."""
    names = dict.fromkeys(name for line in table.values() for name in line if name != view.base)
    keys = [key for key, line in table.items() if view.base in line]
    bars = [
        (i, j, math.log2(float(table[key][name]) / float(table[key][view.base])))
        for i, key in enumerate(keys)
        for j, name in enumerate(names)
        if name in table[key]
    ]
    alike = [len({key[part] for key in keys}) == 1 for part in range(len(view.key))]
    low = math.floor(min(0, *(height for _, _, height in bars)))
    high = math.ceil(max(0, *(height for _, _, height in bars)))
    group = _BAR * len(names) + _GAP
    width, bottom = _LEFT + max(620, group * len(keys)), _TOP + _DOUBLING * (high - low)

    def y(height: float) -> float:
        return _TOP + _DOUBLING * (high - height)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{bottom + 110}" '
        'font-family="sans-serif" font-size="10">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="5" y="15" font-size="13">{view.title}, relative to {view.base}</text>',
        f'<text x="5" y="30">{where}</text>',
    ]
    for j, name in enumerate(names):
        x = _LEFT + 105 * (j % 5)
        line = 47 + 15 * (j // 5)
        out.append(f'<rect x="{x}" y="{line - 8}" width="8" height="8" fill="{color(j)}"/>')
        out.append(f'<text x="{x + 12}" y="{line}">{name}</text>')
    for tick in range(low, high + 1):
        stroke = "black" if tick == 0 else "#dddddd"
        out.append(f'<path d="M{_LEFT - 5} {y(tick)}H{width}" stroke="{stroke}"/>')
        text = f"1/{2**-tick}" if tick < 0 else 2**tick
        out.append(f'<text x="{_LEFT - 8}" y="{y(tick) + 3}" text-anchor="end">{text}</text>')
    for i, j, height in bars:
        x = _LEFT + group * i + _BAR * j
        out.append(
            f'<rect x="{x}" y="{y(max(height, 0)):.1f}" width="{_BAR - 1}" '
            f'height="{_DOUBLING * abs(height):.1f}" fill="{color(j)}"/>'
        )
    for i, key in enumerate(keys):
        x = _LEFT + group * i + group // 2
        label = " ".join(part for part, same in zip(key, alike, strict=True) if not same)
        out.append(
            f'<text transform="translate({x} {bottom + 12}) rotate(-30)" text-anchor="end">'
            f"{label}</text>"
        )
    return "\n".join([*out, "</svg>", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    parser.add_argument("--plots", type=pathlib.Path, metavar="FOLDER")
    options = parser.parse_args()
    names: dict[str, int] = defaultdict(int)
    for (benchmark, where), rows in read(options.files).items():
        for view in VIEWS[benchmark]:
            table = tabulate(view, rows)
            if not table:
                continue
            print(markdown(view, where, table))
            if options.plots and view.base:
                names[benchmark] += 1
                number = f"-{names[benchmark]}" if names[benchmark] > 1 else ""
                options.plots.mkdir(parents=True, exist_ok=True)
                path = options.plots / f"{benchmark}{number}.svg"
                path.write_text(plot(view, where, table))


if __name__ == "__main__":
    main()
