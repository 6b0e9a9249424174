"""LayerNorm and RMSNorm over rows: these kernels beside a copy and other libraries', in one run.

usage: python benchmarks/kernels/rows.py [--dtypes float32 bfloat16 float16 float32:bfloat16]
       [--rms] [--peers torch compile liger quack] [--shapes 65536x1001 ...] [--csv FILE]
       benchmarks/kernels/rows.py --samples [...]
       benchmarks/kernels/rows.py --launches

Prints a Markdown table of milliseconds (median, L2 flushed before each run) and what part of the
copy's bytes per second each pass reaches. Bytes: forward x and y, backward x, dy and dx, and the
statistics and parameters. "inference" leaves no statistics, as torch.compile's forward pass. x:y of
--dtypes is x and dx of one type, y and dy of another. A peer that is not installed, or cannot run a
shape, is a dash.
With --samples: rows of samples, SAMPLESxROWSxCOLS, that have parameters of their own, as the layer
norms of diffusion transformers; peers: torch and compile, layer_norm(x) * scale + shift.
With --launches: microseconds of tiny problems, beside a kernel that does nothing.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

import library
import torch
from timing import microseconds, milliseconds
from torch.nn import functional

SHAPES = [
    (10, 10_000_000), (100, 1_000_000), (1000, 100_000), (10_000, 10_000), (100_000, 1000),
    (1_000_000, 100), (10_000_000, 10), (4, 400_001), (4, 10_000_001), (1024, 12288),
    (65536, 512), (65536, 768), (65536, 1024), (32768, 2048), (32768, 4096), (16384, 8192),
    (16384, 16384), (8192, 32768), (4096, 65536), (2048, 131072),
]  # fmt: skip
SAMPLES = [
    (256, 256, 1152), (64, 256, 1152), (16, 256, 1152), (64, 256, 768), (64, 256, 384),
    (16, 4096, 640), (32, 1024, 1536), (8, 4096, 1536), (4, 4096, 3072), (2, 4608, 3072),
]  # fmt: skip
TINY = [(1, 16), (7, 100), (32, 768), (16, 4096), (2, 20_000)]
MOST_COLUMNS = {"compile": 10**6, "quack": 131_072}
EPSILON = 1e-3


def on_host(run: Callable[[], object], calls: int = 200) -> float:
    """Microseconds that the host takes to launch one call among many: the median of 20 times."""
    taken = []
    for _ in range(20):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            run()
        taken.append((time.perf_counter() - start) / calls * 1e6)
    torch.cuda.synchronize()
    return statistics.median(taken)


def torch_norm(rms: bool, samples: bool) -> Callable:
    if samples:

        def modulated(x, scale, shift):
            plain = torch_norm(rms, samples=False)(x, None, None) * scale[:, None]
            return plain if shift is None else plain + shift[:, None]

        return modulated
    if rms:
        return lambda x, weight, bias: functional.rms_norm(x, x.shape[-1:], weight, EPSILON)
    return lambda x, weight, bias: functional.layer_norm(x, x.shape[-1:], weight, bias, EPSILON)


def peer(name: str, rms: bool, samples: bool) -> Callable:
    """norm(x, weight, bias) of this library."""
    if name == "torch":
        return torch_norm(rms, samples)
    if name == "compile":
        from torch._functorch import config

        config.donated_buffer = False  # the gradient is taken again and again (retain_graph)
        torch._dynamo.reset()
        return torch.compile(torch_norm(rms, samples), dynamic=False)
    if samples:
        raise ValueError("not for samples with parameters of their own")
    if name == "liger":
        if rms:
            from liger_kernel.ops.rms_norm import LigerRMSNormFunction

            return lambda x, weight, bias: LigerRMSNormFunction.apply(x, weight, EPSILON)
        from liger_kernel.ops.layer_norm import LigerLayerNormFunction

        return lambda x, weight, bias: LigerLayerNormFunction.apply(x, weight, bias, EPSILON)
    from quack.rmsnorm import layernorm_fwd, rmsnorm

    if rms:
        return lambda x, weight, bias: rmsnorm(x, weight, eps=EPSILON)
    return lambda x, weight, bias: layernorm_fwd(x, weight, bias, eps=EPSILON)


def measure_peer(
    name: str,
    options: argparse.Namespace,
    x: torch.Tensor,
    dy: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor | None,
) -> tuple:
    """Milliseconds of a forward and a backward pass; None where there is none."""
    # PyTorch wants parameters of x's type, quack float32.
    weight, bias = (
        None if p is None else p.to(torch.float32 if name == "quack" else x.dtype).requires_grad_()
        for p in (gamma, beta)
    )
    source = x.detach().requires_grad_()
    forward = backward = None
    try:
        norm = peer(name, options.rms, options.samples)
        with torch.no_grad():
            forward = milliseconds(partial(norm, source, weight, bias), 10)
        result = norm(source, weight, bias)
        inputs = [t for t in (source, weight, bias) if t is not None]
        gradient = partial(torch.autograd.grad, result, inputs, dy, retain_graph=True)
        backward = milliseconds(gradient, 10)
    except Exception as error:  # a peer that cannot run a shape is a finding
        print(f"{name} {tuple(x.shape)}: {type(error).__name__} {error}"[:150], file=sys.stderr)
    return forward, backward


def calls(shape: tuple[int, ...], dtype: torch.dtype, other: torch.dtype, rms: bool) -> tuple:
    """x, dx, dy, gamma, beta; what launches a forward pass, one without statistics, a gradient."""
    torch.manual_seed(0)
    formula = "rms" if rms else "center"
    x = torch.randn(shape, device="cuda", dtype=dtype)
    dy = torch.randn_like(x, dtype=other)
    own = len(shape) == 3  # parameters of each sample
    gamma = torch.randn(*shape[: 1 if own else 0], shape[-1], device="cuda", dtype=torch.float32)
    rows = x.numel() // shape[-1]
    beta = None if rms else torch.randn_like(gamma)
    y, dx = torch.empty_like(dy), torch.empty_like(x)
    mean = None if rms else torch.empty(rows, device="cuda")
    rstd = torch.empty(rows, device="cuda")
    dgamma, dbeta = torch.empty_like(gamma), None if rms else torch.empty_like(gamma)
    problem = {"axis": [-1], "formula": formula, "per_sample": own}
    settings = {**problem, "epsilon": EPSILON}
    forward = library.forward(x, gamma, beta, y, mean, rstd, **settings)
    inference = library.forward(x, gamma, beta, y, None, None, **settings)
    backward = library.backward(dy, x, gamma, mean, rstd, dx, dgamma, dbeta, **problem)
    return x, dx, dy, gamma, beta, forward, inference, backward


def shape_of(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split("x")))


def print_launches() -> None:
    print("| rows x cols | forward, GPU | backward, GPU | forward, host | backward, host |")
    print("|---|---|---|---|---|")
    nothing = partial(torch.cuda._sleep, 0)
    runs = [("a kernel that does nothing", nothing, nothing)]
    for rows, cols in TINY:
        *_, forward, _, backward = calls((rows, cols), torch.float32, torch.float32, False)
        runs.append((f"{rows} x {cols}", forward, backward))
    for name, *passes in runs:
        gpu = [microseconds(run, calls=200, graphs=20) for run in passes]
        cells = [name, *(f"{time:.2f}" for time in gpu + [on_host(run) for run in passes])]
        print("| " + " | ".join(cells) + " |")


def measure(shape: tuple[int, ...], dtypes: str, options: argparse.Namespace) -> dict:
    dtype, other = (getattr(torch, name) for name in (dtypes.split(":") * 2)[:2])
    x, dx, dy, gamma, beta, *passes = calls(shape, dtype, other, options.rms)
    forward, inference, backward = passes
    rows, cols = x.numel() // shape[-1], shape[-1]
    out = {"rows": rows, "cols": cols, "dtype": dtypes}
    if options.samples:
        out = {"samples": shape[0], **out}
    out["copy"] = milliseconds(lambda: dx.copy_(x))
    out["forward"] = milliseconds(forward)
    out["inference"] = milliseconds(inference)
    out["backward"] = milliseconds(backward)
    size, other_size = (t.numel() * t.element_size() for t in (x, dy))
    stat = (1 if options.rms else 2) * rows * 4
    one = gamma.numel() * 4
    params = (1 if options.rms else 2) * one
    speed = 2 * size / out["copy"]
    out["forward_of_copy"] = (size + other_size + stat + params) / out["forward"] / speed
    moved = 2 * size + other_size + stat + one + params
    out["backward_of_copy"] = moved / out["backward"] / speed
    for name in options.peers if other == dtype else ():
        if cols > MOST_COLUMNS.get(name, cols):
            continue  # takes minutes to compile, or fails
        out[f"{name}_forward"], out[f"{name}_backward"] = measure_peer(
            name, options, x, dy, gamma, beta
        )
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--rms", action="store_true", help="RMSNorm in place of LayerNorm")
    parser.add_argument("--peers", nargs="*", default=["torch"], help="torch compile liger quack")
    parser.add_argument("--shapes", nargs="+", type=shape_of, metavar="ROWSxCOLS")
    parser.add_argument("--samples", action="store_true", help="rows of samples")
    parser.add_argument("--csv", help="write the numbers to this file")
    parser.add_argument("--launches", action="store_true", help="tiny problems instead")
    options = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}\n")
    if options.launches:
        print_launches()
        return
    shapes = options.shapes or (SAMPLES if options.samples else SHAPES)
    if any(len(shape) != (3 if options.samples else 2) for shape in shapes):
        parser.error("--shapes: expected ROWSxCOLS, with --samples SAMPLESxROWSxCOLS")
    what = "samples x rows x cols" if options.samples else "rows x cols"
    header = ["dtype", what, "copy", "forward", "of copy", "inference"]
    header += ["backward", "of copy"]
    header += [f"{name} {way}" for name in options.peers for way in ("forward", "backward")]
    print("| " + " | ".join(header) + " |\n" + "|---" * len(header) + "|")
    results = []
    for dtype in options.dtypes:
        for shape in shapes:
            r = measure(shape, dtype, options)
            results.append(r)
            cells = [dtype, " x ".join(map(str, shape)), f"{r['copy']:.4g}"]
            cells += [f"{r['forward']:.4g}", f"{r['forward_of_copy']:.2f}"]
            cells += [f"{r['inference']:.4g}"]
            cells += [f"{r['backward']:.4g}", f"{r['backward_of_copy']:.2f}"]
            for name in options.peers:
                for way in ("forward", "backward"):
                    value = r.get(f"{name}_{way}")
                    cells.append("-" if value is None else f"{value:.4g}")
            print("| " + " | ".join(cells) + " |", flush=True)
            torch.cuda.empty_cache()
    if options.csv:
        with open(options.csv, "w", newline="") as file:
            fields = list(dict.fromkeys(key for r in results for key in r))
            writer = csv.DictWriter(file, fields)
            writer.writeheader()
            writer.writerows(results)


if __name__ == "__main__":
    main()
