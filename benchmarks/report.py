"""Tables (Markdown) and plots (SVG) from the CSV files that the benchmarks wrote.

Usage: python benchmarks/report.py benchmarks/results/NAME*.csv [--plots FOLDER]

A table for each benchmark in the files goes to stdout. The plots need matplotlib (pip install
matplotlib); each shows times relative to TensorFlow's own.
"""

from __future__ import annotations

import argparse
import csv
import pathlib
from collections import defaultdict
from typing import NamedTuple


class View(NamedTuple):
    """How the rows of one benchmark become a table."""

    title: str
    key: tuple[str, ...]  # columns that name a line of the table
    column: str  # whose values are the table's columns
    value: str
    base: str | None  # the column that plots are relative to


VIEWS = {
    "layer_norm": View("Layer norm, ms a step", ("shape", "policy"), "way", "ms", "TF function"),
    "instance_norm": View(
        "Instance norm, ms a step", ("shape", "layout", "policy"), "way", "ms", "TF function"
    ),
    "dense_layers": View(
        "Five dense layers, time relative to no norm", ("batch", "units"), "norm", "ratio", None
    ),
    "keras_layers": View(
        "Three Keras layers on images, ms a step of fit",
        ("layer", "batch", "size"),
        "way",
        "ms",
        "current",
    ),
    "variance": View(
        "Largest error of y against float64", ("input",), "formula", "largest_error", None
    ),
    "models": View("Models, ms a step", ("model", "mode", "size", "policy"), "way", "ms", "stock"),
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
        table[tuple(row[name] for name in view.key)][row[view.column]] = row[view.value]
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
    try:
        number = float(value)
    except ValueError:
        return value
    return value if "e" in value or number == float("inf") else f"{number:.3g}"


def plot(view: View, where: str, table: Table, path: pathlib.Path) -> None:
    """Bars: time of each way relative to the base."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    columns = list(dict.fromkeys(name for line in table.values() for name in line))
    keys = [key for key, line in table.items() if view.base is None or view.base in line]
    figure, axes = plt.subplots(figsize=(max(6, 0.9 * len(keys)), 4))
    width = 0.8 / len(columns)
    for number, name in enumerate(columns):
        heights = []
        for key in keys:
            base = float(table[key][view.base]) if view.base else 1.0
            heights.append(float(table[key].get(name, "nan")) / base)
        places = [i + width * (number - (len(columns) - 1) / 2) for i in range(len(keys))]
        axes.bar(places, heights, width, label=name)
    axes.axhline(1, color="black", linewidth=0.5)
    axes.set_yscale("log", base=2)
    axes.set_xticks(range(len(keys)), [" ".join(key) for key in keys], rotation=30, ha="right")
    axes.set_ylabel(f"time relative to {view.base or 'no norm'}")
    axes.set_title(f"{view.title}\n{where}", fontsize=8)
    axes.legend(fontsize=7, ncols=4)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    parser.add_argument("--plots", type=pathlib.Path, metavar="FOLDER")
    options = parser.parse_args()
    names: dict[str, int] = defaultdict(int)
    for (benchmark, where), rows in read(options.files).items():
        view = VIEWS[benchmark]
        table = tabulate(view, rows)
        print(markdown(view, where, table))
        if options.plots and benchmark != "variance":
            names[benchmark] += 1
            number = f"-{names[benchmark]}" if names[benchmark] > 1 else ""
            options.plots.mkdir(parents=True, exist_ok=True)
            plot(view, where, table, options.plots / f"{benchmark}{number}.svg")


if __name__ == "__main__":
    main()
