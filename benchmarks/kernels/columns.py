"""Instance and group norm, channels last and first: these kernels beside a copy and PyTorch.

usage: python benchmarks/kernels/columns.py [--out FOLDER] [--quick] [--compile] [--seconds N]
       [--slope A] [--shapes WORD...]
       [--dtypes float32 float16 bfloat16 float32:float16 float32:bfloat16]

One GPU, one run. Times are medians of milliseconds with a cold L2. Writes columns.csv, columns.md
and, with matplotlib, columns.png into FOLDER. "of copy": the bytes that must be moved (forward
twice, backward three times x) by the time, as a part of the copy's bytes per second. PyTorch:
group_norm (and instance_norm) in the better of its two layouts, whichever layout ours is.

--slope A: with a leaky relu behind the norm, too: as these kernels do it ("activated"), and as the
norm and an op of its own ("apart"; PyTorch's, which reads and writes as little as one can: y in
place, and dy from dy and y).
"""

from __future__ import annotations

import argparse
import csv
import time
from functools import partial
from pathlib import Path

import library
import torch
from timing import milliseconds
from torch.nn import functional

# n, spatial dimensions, channels, groups
INSTANCE = [
    (2, (6, 6, 6), 32), (2, (128, 128, 128), 32), (2, (128, 128, 128), 64),
    (4, (128, 128, 128), 32), (4, (64, 64, 64), 64), (8, (64, 64, 64), 32),
    (8, (64, 64, 64), 64), (8, (64, 64, 64), 128), (4, (32, 32, 32), 256),
    (8, (32, 32, 32), 256),
]  # fmt: skip
GROUP = [(32, (56, 56), 256), (8, (64, 64), 320), (2, (128, 128), 512)]
GROUP += [(64, (28, 28), 256), (8, (32, 32), 640), (16, (16, 16), 1280)]
GROUP += [(64, (14, 14), 1024), (256, (7, 7), 512), (32, (32, 32), 512)]
IMAGES = [(128, (224, 224), 3)]  # of benchmark_keras_layers.py
IMAGES += [(32, (56, 56), 256), (64, (112, 112), 64), (2, (24, 24, 24), 128), (2, (96, 96, 96), 32)]
# n, channels, rest: layer norm over the channels of channels first
MIDDLE = [(64, 96, 3136), (64, 192, 784), (2, 64, 262144), (32, 768, 1024), (8, 512, 4096)]
SHAPES = [(*s, s[2]) for s in INSTANCE + IMAGES] + [(*s, 32) for s in GROUP]
DTYPES = ["float32", "float16", "bfloat16"]
EPSILON = 1e-3
FIELDS = [
    "dtype", "shape", "groups", "layout", "megabytes", "copy", "forward", "forward_of_copy",
    "backward", "backward_of_copy", "torch_forward", "torch_backward", "compile_forward",
]  # fmt: skip
ACTIVATED = ["forward_activated", "forward_apart", "backward_activated", "backward_apart"]


def ours(
    x: torch.Tensor,
    dy: torch.Tensor,
    groups: int,
    last: bool,
    slope: float | None = None,
) -> dict:
    """Of x and dx in x's type, y and dy in dy's."""
    layout = {"groups": groups, "channels_last": last}
    return times(x, dy, x.shape[-1 if last else 1], x.shape[0] * groups, layout, slope)


def times(
    x: torch.Tensor,
    dy: torch.Tensor,
    channels: int,
    stats: int,
    layout: dict,
    slope: float | None = None,
) -> dict:
    gamma, beta = (torch.randn(channels, device="cuda") for _ in range(2))
    mean = torch.empty(stats, device="cuda")
    rstd, dgamma, dbeta = torch.empty_like(mean), torch.empty_like(gamma), torch.empty_like(gamma)
    y, dx = torch.empty_like(dy), torch.empty_like(x)
    forward = library.forward(x, gamma, beta, y, mean, rstd, epsilon=EPSILON, **layout)
    backward = library.backward(dy, x, gamma, mean, rstd, dx, dgamma, dbeta, **layout)
    out = {"copy": milliseconds(lambda: dx.copy_(x)), "forward": milliseconds(forward)}
    out["backward"] = milliseconds(backward)
    other = dy.element_size() / x.element_size()
    out["forward_of_copy"] = (1 + other) / 2 * out["copy"] / out["forward"]
    out["backward_of_copy"] = (2 + other) / 2 * out["copy"] / out["backward"]
    if slope is None:
        return out
    relu = {**layout, "negative_slope": slope}
    activated = library.forward(x, gamma, beta, y, mean, rstd, epsilon=EPSILON, **relu)
    out["forward_activated"] = milliseconds(activated)
    gradient = library.backward(dy, x, gamma, mean, rstd, dx, dgamma, dbeta, beta=beta, **relu)
    out["backward_activated"] = milliseconds(gradient)

    def forward_apart() -> None:
        forward()
        functional.leaky_relu_(y, slope)

    out["forward_apart"] = milliseconds(forward_apart)
    behind = torch.empty_like(dy)
    apart = library.backward(behind, x, gamma, mean, rstd, dx, dgamma, dbeta, **layout)

    def backward_apart() -> None:
        torch.ops.aten.leaky_relu_backward.grad_input(dy, y, slope, True, grad_input=behind)
        apart()

    out["backward_apart"] = milliseconds(backward_apart)
    return out


def pytorch(x: torch.Tensor, groups: int, compiled: bool) -> dict:
    """The best of PyTorch's ways, x channels first or in its channels-last memory format."""
    channels = x.shape[1]
    weight = torch.randn(channels, device="cuda", dtype=x.dtype, requires_grad=True)
    bias = torch.randn(channels, device="cuda", dtype=x.dtype, requires_grad=True)
    formats = [torch.contiguous_format]
    if x.dim() in (4, 5):
        formats.append(torch.channels_last if x.dim() == 4 else torch.channels_last_3d)

    def group_norm(x: torch.Tensor) -> torch.Tensor:
        return functional.group_norm(x, groups, weight, bias, EPSILON)

    def instance_norm(x: torch.Tensor) -> torch.Tensor:
        return functional.instance_norm(x, weight=weight, bias=bias, eps=EPSILON)

    forwards, backwards, compiles = [], [], []
    for form in formats:
        source = x.contiguous(memory_format=form).detach().requires_grad_()
        dy = torch.randn_like(source)
        for norm in (group_norm, instance_norm) if groups == channels else (group_norm,):
            with torch.no_grad():
                forwards.append(milliseconds(partial(norm, source), 3))
            result = norm(source)
            inputs = (source, weight, bias)
            gradient = partial(torch.autograd.grad, result, inputs, dy, retain_graph=True)
            backwards.append(milliseconds(gradient, 3))
            if compiled and norm is group_norm:
                torch._dynamo.reset()
                with torch.no_grad():
                    compiles.append(milliseconds(partial(torch.compile(norm), source), 5))
            del result
    out = {"torch_forward": min(forwards), "torch_backward": min(backwards)}
    return {**out, "compile_forward": min(compiles)} if compiles else out


def measure(shape: tuple, dtypes: str, options: argparse.Namespace) -> list[dict]:
    n, spatial, channels, groups = shape
    dtype, other = (getattr(torch, name) for name in (dtypes.split(":") * 2)[:2])
    torch.manual_seed(0)
    peers = {}
    rows = []
    for last in (True, False):
        dims = (n, *spatial, channels) if last else (n, channels, *spatial)
        x = torch.randn(dims, device="cuda", dtype=dtype)
        if not last and not options.quick and other == dtype:
            peers = pytorch(x, groups, options.compile)
        row = ours(x, torch.randn_like(x, dtype=other), groups, last, options.slope)
        row["dtype"], row["groups"] = dtypes, groups
        row["shape"] = "x".join(map(str, (n, *spatial, channels)))
        row["layout"] = "N...C" if last else "NC..."
        row["megabytes"] = round(x.numel() * x.element_size() / 1e6, 1)
        rows.append(row)
    for row in rows:
        row.update(peers)
    torch.cuda.empty_cache()
    return rows


def measure_middle(shape: tuple, dtypes: str) -> dict:
    dtype, other = (getattr(torch, name) for name in (dtypes.split(":") * 2)[:2])
    torch.manual_seed(0)
    x = torch.randn(shape, device="cuda", dtype=dtype)
    dy = torch.randn_like(x, dtype=other)
    row = times(x, dy, shape[1], shape[0] * shape[2], {"axis": [1]})
    row |= {"dtype": dtypes, "shape": "x".join(map(str, shape)), "layout": "middle axis"}
    row["megabytes"] = round(x.numel() * x.element_size() / 1e6, 1)
    torch.cuda.empty_cache()
    return row


def markdown(rows: list[dict], fields: list[str]) -> str:
    lines = ["| " + " | ".join(fields) + " |", "|---" * len(fields) + "|"]
    for row in rows:
        cells = [row.get(field, "") for field in fields]
        cells = [
            f"{cell:.2f}" if field.endswith("of_copy") else f"{cell:.4g}"
            if isinstance(cell, float) else str(cell)
            for field, cell in zip(fields, cells, strict=True)
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def plot(rows: list[dict], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 1, figsize=(12, 8), sharex=True)
    rows = [r for r in rows if r["dtype"] in ("float32", "float16")]
    chosen = [r for r in rows if r["layout"] == "N...C"]
    names = [f"{r['shape']} {r['dtype'][:1]}{r['dtype'][5:]}" for r in chosen]
    for axis, way, factor in zip(axes, ("forward", "backward"), (1, 1.5), strict=True):
        for layout, shift in (("N...C", -0.2), ("NC...", 0.2)):
            heights = [float(r[f"{way}_of_copy"]) for r in rows if r["layout"] == layout]
            axis.bar([i + shift for i in range(len(chosen))], heights, 0.4, label=f"ours, {layout}")
        peers = [factor * float(r["copy"]) / float(r.get(f"torch_{way}", "nan")) for r in chosen]
        axis.plot(range(len(chosen)), peers, "k_", markersize=12, label="PyTorch, better layout")
        axis.axhline(1, color="gray", linewidth=0.8)
        axis.set_ylabel(f"{way}: part of the copy's bytes/s")
        axis.legend()
    axes[1].set_xticks(range(len(chosen)), names, rotation=75, fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument(
        "--dtypes", nargs="+", default=DTYPES, help="x:y is y and dy of a type of their own"
    )
    parser.add_argument("--quick", action="store_true", help="no peers")
    parser.add_argument("--compile", action="store_true", help="torch.compile too (slow to start)")
    parser.add_argument("--slope", type=float, help="time a leaky relu behind the norm, too")
    parser.add_argument("--shapes", nargs="+", help="only these, such as 2x128x128x128x32")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no shape after this time")
    options = parser.parse_args()
    head = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}"
    fields = FIELDS + (ACTIVATED if options.slope is not None else [])

    def chosen(shape: tuple) -> bool:
        return not options.shapes or "x".join(map(str, shape)) in options.shapes

    started = time.monotonic()
    rows = []
    for dtypes in options.dtypes:
        for shape in SHAPES:
            if not chosen((shape[0], *shape[1], shape[2])):
                continue
            if time.monotonic() - started > options.seconds:
                print("out of time before", dtypes, shape)
                continue
            rows += measure(shape, dtypes, options)
            for r in rows[-2:]:
                print(r["dtype"], r["shape"], r["layout"], f"{r['forward_of_copy']:.2f}",
                      f"{r['backward_of_copy']:.2f}",
                      *(f"{name} {r[name]:.4f}" for name in ("forward", "backward", *ACTIVATED)
                        if options.slope is not None), flush=True)  # fmt: skip
        for shape in MIDDLE:
            if time.monotonic() - started > options.seconds or not chosen(shape):
                continue
            rows.append(r := measure_middle(shape, dtypes))
            print(r["dtype"], r["shape"], r["layout"], f"{r['forward_of_copy']:.2f}",
                  f"{r['backward_of_copy']:.2f}", flush=True)  # fmt: skip
    options.out.mkdir(parents=True, exist_ok=True)
    with open(options.out / "columns.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, fields)
        writer.writeheader()
        writer.writerows(rows)
    (options.out / "columns.md").write_text(f"{head}\n\n{markdown(rows, fields)}")
    try:
        plot(rows, options.out / "columns.png")
    except ImportError:
        print("no matplotlib: no plot")


if __name__ == "__main__":
    main()
