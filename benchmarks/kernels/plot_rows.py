"""A plot of the part of a copy's bytes per second that the row kernels reach, over columns.

usage: python benchmarks/kernels/plot_rows.py layer_norm.csv [rms_norm.csv ...] --out FILE.png
The files are what rows.py --csv wrote.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+")
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    figure, axes = pyplot.subplots(
        len(options.files), 2, figsize=(11, 3.6 * len(options.files)), squeeze=False, sharey=True
    )
    for line, name in zip(axes, options.files, strict=True):
        with open(name, newline="") as file:
            rows = [r for r in csv.DictReader(file) if int(r["rows"]) * int(r["cols"]) >= 2**24]
        for axis, way in zip(line, ("forward", "backward"), strict=True):
            for dtype in dict.fromkeys(r["dtype"] for r in rows):
                points = sorted(
                    (int(r["cols"]), float(r[f"{way}_of_copy"]))
                    for r in rows
                    if r["dtype"] == dtype
                )
                axis.plot(*zip(*points, strict=True), marker="o", markersize=3, label=dtype)
            axis.set_xscale("log")
            axis.set_ylim(0, 1.1)
            axis.axhline(1, color="gray", linewidth=0.8)
            axis.set_title(f"{Path(name).stem.replace('_', ' ')}, {way}")
            axis.set_xlabel("columns")
            axis.grid(alpha=0.3)
        line[0].set_ylabel("of the copy's bytes per second")
        line[1].legend()
    figure.tight_layout()
    figure.savefig(options.out, dpi=110)


if __name__ == "__main__":
    main()
