"""LayerNorm and RMSNorm over rows: these kernels beside a copy and PyTorch, on one GPU, in one run.

usage: python benchmarks/kernels/rows.py [--dtypes float32 bfloat16] [--rms] [--compile] [--quick]
       [--json FILE]

Prints a Markdown table of milliseconds (median, L2 flushed before each run) and what part of the
copy's bytes per second each pass reaches. Bytes: forward twice, backward three times the size of x,
and the statistics and parameters.
"""

from __future__ import annotations

import argparse
import json
import statistics
import warnings
from functools import partial

import library
import torch
from torch.nn import functional

SHAPES = [
    (10, 10_000_000), (100, 1_000_000), (1000, 100_000), (10_000, 10_000), (100_000, 1000),
    (1_000_000, 100), (10_000_000, 10), (4, 400_001), (4, 10_000_001), (1024, 12288),
    (65536, 512), (65536, 768), (65536, 1024), (32768, 2048), (32768, 4096), (16384, 8192),
    (16384, 16384), (8192, 32768), (4096, 65536), (2048, 131072),
]  # fmt: skip
EPSILON = 1e-3
FLUSH = None


def milliseconds(run: object, repeats: int = 20) -> float:
    """Median time of one call on the GPU, with a cold L2."""
    global FLUSH
    if FLUSH is None:
        FLUSH = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    for _ in range(3):
        run()
    times = []
    for _ in range(repeats):
        FLUSH.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        times.append((begin, end))
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in times)


def measure(rows: int, cols: int, dtype: torch.dtype, options: argparse.Namespace) -> dict:
    torch.manual_seed(0)
    formula = "rms" if options.rms else "center"
    x = torch.randn(rows, cols, device="cuda", dtype=dtype)
    dy = torch.randn_like(x)
    gamma = torch.randn(cols, device="cuda", dtype=torch.float32)
    beta = None if options.rms else torch.randn_like(gamma)
    y, dx = torch.empty_like(x), torch.empty_like(x)
    mean = None if options.rms else torch.empty(rows, device="cuda")
    rstd = torch.empty(rows, device="cuda")
    dgamma, dbeta = torch.empty_like(gamma), None if options.rms else torch.empty_like(gamma)
    settings = {"axis": [-1], "formula": formula, "epsilon": EPSILON}
    forward = library.forward(x, gamma, beta, y, mean, rstd, **settings)
    backward = library.backward(
        dy, x, gamma, mean, rstd, dx, dgamma, dbeta, axis=[-1], formula=formula
    )
    out = {"rows": rows, "cols": cols, "dtype": str(dtype).removeprefix("torch.")}
    out["copy"] = milliseconds(lambda: y.copy_(x))
    out["forward"] = milliseconds(forward)
    out["backward"] = milliseconds(backward)
    size = x.numel() * x.element_size()
    stat = (1 if options.rms else 2) * rows * 4
    params = (1 if options.rms else 2) * cols * 4
    speed = 2 * size / out["copy"]
    out["forward_of_copy"] = (2 * size + stat + params) / out["forward"] / speed
    out["backward_of_copy"] = (3 * size + stat + 4 * cols + params) / out["backward"] / speed
    if options.quick:
        return out
    # PyTorch wants parameters of x's type.
    weight = gamma.to(dtype).requires_grad_()
    bias = None if beta is None else beta.to(dtype).requires_grad_()
    source = x.detach().requires_grad_()

    def norm(x: torch.Tensor) -> torch.Tensor:
        if options.rms:
            return functional.rms_norm(x, (cols,), weight, EPSILON)
        return functional.layer_norm(x, (cols,), weight, bias, EPSILON)

    inputs = [t for t in (source, weight, bias) if t is not None]
    peers = {"torch": norm}
    if options.compile:
        torch._dynamo.reset()
        peers["torch.compile"] = torch.compile(norm)
    for name, function in peers.items():
        try:
            with torch.no_grad():
                out[f"{name} forward"] = milliseconds(partial(function, source), 10)
            result = function(source)
            gradient = partial(torch.autograd.grad, result, inputs, dy, retain_graph=True)
            out[f"{name} backward"] = milliseconds(gradient, 10)
        except Exception as error:  # a peer that cannot run a shape is a finding
            warnings.warn(f"{name} {rows} x {cols}: {type(error).__name__}", stacklevel=1)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--rms", action="store_true", help="RMSNorm in place of LayerNorm")
    parser.add_argument("--compile", action="store_true", help="torch.compile too (slow to start)")
    parser.add_argument("--quick", action="store_true", help="no peers")
    parser.add_argument("--json", help="write the numbers to this file")
    options = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}")
    results = []
    header = ["dtype", "rows x cols", "copy", "forward", "of copy", "backward", "of copy"]
    peers = [] if options.quick else ["torch"] + ["torch.compile"] * options.compile
    header += [f"{peer} {way}" for peer in peers for way in ("forward", "backward")]
    print("| " + " | ".join(header) + " |\n" + "|---" * len(header) + "|")
    for dtype in options.dtypes:
        for rows, cols in SHAPES:
            r = measure(rows, cols, getattr(torch, dtype), options)
            results.append(r)
            cells = [dtype, f"{rows} x {cols}", f"{r['copy']:.4g}"]
            for way in ("forward", "backward"):
                cells += [f"{r[way]:.4g}", f"{r[f'{way}_of_copy']:.2f}"]
            for name in header[len(cells) :]:
                cells.append(f"{r[name]:.4g}" if name in r else "-")
            print("| " + " | ".join(cells) + " |", flush=True)
            torch.cuda.empty_cache()
    if options.json:
        with open(options.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
