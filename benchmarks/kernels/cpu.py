"""The CPU kernels beside a copy of the same bytes, PyTorch, TensorFlow and XLA:CPU, in one run.

usage: benchmarks/kernels/build_cpu.sh && python benchmarks/kernels/cpu.py [--threads 1 2]
       [--only rows columns ...] [--dtypes float32 ...] [--megabytes 100 400] [--quick]
       [--peers torch TF] [--rounds 5]

Prints a Markdown table for each number of threads, with tensors of so many megabytes (2^20 bytes of
float32; "sizes" has its own): 100, and where the last-level cache is said to hold as much, a third
more than that cache, since a copy of less runs partly in it. Times are milliseconds, the median of
calls into buffers that exist ("fresh": into memory that was just allocated, as the peers' outputs
are). "of copy": the bytes that must be moved (forward 2, backward 3 times the size of x) by the
time, as a part of the better copy's bytes per second.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import cpu_library
import numpy as np

MB = 1 << 20
# name: x's shape for 100 MB of float32, how the library is called
ROWS = {"axis": [-1]}
PROBLEMS: dict[str, list[tuple[tuple[int, ...], dict]]] = {
    # from the L1 cache to 400 MB
    "sizes": [((rows, 768), ROWS) for rows in (8, 64, 342, 2048, 8192, 32768, 131072)],
    "rows": [
        ((100 * MB // 4 // cols, cols), ROWS)
        for cols in (64, 100, 128, 256, 512, 768, 1000, 1024, 2048, 4096, 8192, 16384, 32768)
    ],
    "short rows": [((25 * MB // cols // 64 * 64, cols), ROWS) for cols in (3, 5, 10, 16, 32, 48)],
    "long rows": [((25, 1 << 20), ROWS), ((3, 1 << 23), ROWS)],
    "rms": [((25 * MB // cols, cols), ROWS | {"formula": "rms"}) for cols in (128, 768, 4096)],
    "groups": [
        ((32, 28, 28, 1024), {"groups": 32}),
        ((100, 64, 64, 64), {"groups": 32}),
        ((12, 128, 128, 128), {"groups": 32}),
        ((2, 512, 512, 48), {"groups": 8}),
    ],
    "columns": [
        ((100, 64, 64, 64), {"groups": -1}),
        ((12, 128, 128, 128), {"groups": -1}),
        ((1, 64, 128, 128, 24), {"groups": -1}),
        ((2048, 64, 192), {"axis": [1]}),
        ((8, 1024, 3072), {"axis": [1]}),
    ],
    "channels first": [
        ((100, 64, 64, 64), {"groups": -1, "channels_last": False}),
        ((100, 64, 64, 64), {"groups": 32, "channels_last": False}),
    ],
}  # fmt: skip


def aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Zeros whose first element is 64-byte aligned, as TensorFlow's tensors are."""
    size = int(np.prod(shape)) * dtype.itemsize
    buffer = np.zeros(size + 64, np.uint8)
    start = -buffer.ctypes.data % 64
    return buffer[start : start + size].view(dtype).reshape(shape)


def measure_all(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The median time of each call in milliseconds: in turns, some calls of each at a time."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            call()
            end = time.perf_counter() + 0.03
            count = 0
            while count < 2 or (time.perf_counter() < end and count < 200):
                start = time.perf_counter()
                call()
                times[name].append(time.perf_counter() - start)
                count += 1
    return {name: 1e3 * statistics.median(of) for name, of in times.items()}


def beyond_the_caches() -> int:
    """Megabytes of which nothing is left in the last-level cache: four thirds of it, in hundreds.

    Not more, since a virtual machine is told of its host's whole cache and has a part of it.
    """
    reported = (
        os.sysconf("SC_LEVEL3_CACHE_SIZE") if "SC_LEVEL3_CACHE_SIZE" in os.sysconf_names else 0
    )
    return max(1, -(-reported * 4 // 3 // (100 * MB))) * 100


def scaled(shape: tuple[int, ...], megabytes: int) -> tuple[int, ...]:
    """A shape of 100 MB with as many more samples, or rows in whole blocks of 16."""
    first = shape[0] * megabytes / 100
    return (max(1, round(first / 16) * 16 if first >= 1000 else round(first)), *shape[1:])


def axes(x: np.ndarray, settings: dict) -> tuple[list[int], tuple[int, ...]]:
    """The parameters' shape for the peers: of x's normalized axes, or its channels."""
    if "axis" in settings:
        return [a % x.ndim for a in settings["axis"]], tuple(x.shape[a] for a in settings["axis"])
    return [], (x.shape[-1 if settings.get("channels_last", True) else 1],)


def our_calls(x: np.ndarray, dy: np.ndarray, settings: dict, threads: int) -> dict[str, Callable]:
    rms = settings.get("formula") == "rms"
    _, params = axes(x, settings)
    rng = np.random.default_rng(1)
    gamma = rng.standard_normal(params).astype(np.float32)
    beta = None if rms else rng.standard_normal(params).astype(np.float32)
    if "axis" in settings:
        stats = int(np.prod(x.shape)) // int(np.prod(params))
    else:
        groups = settings["groups"]
        stats = x.shape[0] * (params[0] if groups == -1 else groups)
    stat = np.float64 if x.dtype == np.float64 else np.float32
    mean = None if rms else np.empty(stats, stat)
    rstd = np.empty(stats, stat)
    y, dx = aligned(x.shape, x.dtype), aligned(x.shape, x.dtype)
    dgamma = np.empty(params, np.float32)
    dbeta = None if rms else np.empty(params, np.float32)
    options = settings | {"threads": threads}

    def fresh(*_: object) -> None:
        cpu_library.forward(x, gamma, beta, np.empty_like(x), mean, rstd, **options)()

    forward = cpu_library.forward(x, gamma, beta, y, mean, rstd, **options)
    forward()
    return {
        "copy": cpu_library.copy(x, y, False, threads),
        "copy past cache": cpu_library.copy(x, y, True, threads),
        "forward": forward,
        "backward": cpu_library.backward(dy, x, gamma, mean, rstd, dx, dgamma, dbeta, **options),
        "fresh copy": lambda: cpu_library.copy(x, aligned_fresh(x), False, threads)(),
        "fresh forward": fresh,
    }


def aligned_fresh(x: np.ndarray) -> np.ndarray:
    buffer = np.empty(x.nbytes + 64, np.uint8)
    start = -buffer.ctypes.data % 64
    return buffer[start : start + x.nbytes]


def torch_calls(x: np.ndarray, dy: np.ndarray, settings: dict) -> dict[str, Callable]:
    import torch
    from torch.nn import functional

    def to_torch(array: np.ndarray) -> torch.Tensor:
        if array.dtype.name == "bfloat16":
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array)

    axis, params = axes(x, settings)
    source, upstream = to_torch(x), to_torch(dy)
    if axis and axis != [x.ndim - 1]:
        return {}
    if not axis and settings.get("channels_last", True):
        # the same memory as [N, C, ...]
        order = [0, x.ndim - 1, *range(1, x.ndim - 1)]
        source, upstream = source.permute(order), upstream.permute(order)
    weight = torch.randn(params, dtype=source.dtype).requires_grad_()
    bias = torch.randn(params, dtype=source.dtype).requires_grad_()

    def norm(x: torch.Tensor) -> torch.Tensor:
        if settings.get("formula") == "rms":
            return functional.rms_norm(x, params, weight, 1e-3)
        if axis:
            return functional.layer_norm(x, params, weight, bias, 1e-3)
        if settings["groups"] == -1:
            return functional.instance_norm(x, weight=weight, bias=bias, eps=1e-3)
        return functional.group_norm(x, settings["groups"], weight, bias, 1e-3)

    leaf = source.detach().requires_grad_()
    wanted = [leaf, weight] if settings.get("formula") == "rms" else [leaf, weight, bias]
    result = norm(leaf)

    def forward() -> None:
        with torch.no_grad():
            norm(source)

    return {
        "torch forward": forward,
        "torch backward": lambda: torch.autograd.grad(result, wanted, upstream, retain_graph=True),
    }


def tensorflow_calls(x: np.ndarray, settings: dict) -> dict[str, Callable]:
    """The Keras layer as TensorFlow and as XLA run it, forward (cpu_layers.py has the gradient)."""
    import keras
    import tensorflow as tf

    axis, _ = axes(x, settings)
    if not axis and not settings.get("channels_last", True):
        return {}
    dtype = x.dtype.name
    if settings.get("formula") == "rms":
        layer = keras.layers.RMSNormalization(axis=axis, dtype=dtype)
    elif axis:
        layer = keras.layers.LayerNormalization(axis=axis, dtype=dtype)
    else:
        layer = keras.layers.GroupNormalization(settings["groups"], dtype=dtype)
    layer.build(x.shape)
    tensor = tf.constant(x)
    stock = tf.function(lambda x: layer(x), jit_compile=False)
    xla = tf.function(lambda x: layer(x), jit_compile=True)
    return {"TF forward": lambda: stock(tensor), "XLA forward": lambda: xla(tensor)}


def run(options: argparse.Namespace, threads: int) -> None:
    os.environ["OMP_NUM_THREADS"] = str(threads)
    peers = []
    if "torch" in options.peers:
        import torch

        torch.set_num_threads(threads)
        peers.append(f"torch {torch.__version__}")
    if "TF" in options.peers:
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)
        peers.append(f"TensorFlow {tf.__version__}")
    print(f"\n{platform.machine()}, {threads} threads, {cpu_library.target()}; " + ", ".join(peers))
    header = ["kind", "dtype", "x", "MB", "copy", "copy past cache", "GB/s", "forward", "of copy",
              "backward", "of copy", "fresh copy", "fresh forward"]  # fmt: skip
    header += ["torch forward", "torch backward"] if "torch" in options.peers else []
    header += ["TF forward", "XLA forward"] if "TF" in options.peers else []
    print("\n| " + " | ".join(header) + " |\n" + "|---" * len(header) + "|")
    wanted = [
        (kind, shape if kind == "sizes" else scaled(shape, size), settings)
        for kind, problems in PROBLEMS.items()
        if kind in (options.only or PROBLEMS)
        for size in (options.megabytes if kind != "sizes" else [0])
        for shape, settings in problems
    ]
    for kind, shape, settings in wanted:
        for name in options.dtypes:
            r = measure(kind, shape, settings, name, threads, options)
            cells = [kind, name, "x".join(map(str, shape)), f"{r['MB']:.3g}"]
            cells += [f"{r['copy']:.4g}", f"{r['copy past cache']:.4g}", f"{r['GB/s']:.3g}"]
            for way in ("forward", "backward"):
                cells += [f"{r[way]:.4g}", f"{r[way + ' of copy']:.2f}"]
            cells += [f"{r[c]:.4g}" if c in r else "-" for c in header[len(cells) :]]
            print("| " + " | ".join(cells) + " |", flush=True)


def measure(
    kind: str,
    shape: tuple[int, ...],
    settings: dict,
    dtype_name: str,
    threads: int,
    options: argparse.Namespace,
) -> dict:
    if dtype_name == "bfloat16":
        import ml_dtypes

        dtype = np.dtype(ml_dtypes.bfloat16)
    else:
        dtype = np.dtype(dtype_name)
    rng = np.random.default_rng(0)
    x, dy = aligned(shape, dtype), aligned(shape, dtype)
    for array in (x, dy):
        # random numbers, and not all of them: that would take longer than the measurement
        flat = array.reshape(-1)
        some = rng.standard_normal(min(flat.size, 1 << 20), np.float32).astype(dtype)
        for start in range(0, flat.size, some.size):
            flat[start : start + some.size] = some[: flat.size - start]
    calls = our_calls(x, dy, settings, threads)
    makers = {
        "torch": lambda: torch_calls(x, dy, settings),
        "TF": lambda: tensorflow_calls(x, settings),
    }
    for peer in options.peers:
        try:
            calls |= makers[peer]()
        except Exception as error:  # a peer that cannot run a problem is a finding
            warnings.warn(f"{kind} {shape}: {type(error).__name__}: {error}", stacklevel=1)
    out = measure_all(calls, options.rounds)
    out |= {"kind": kind, "dtype": dtype_name, "x": list(shape), "MB": x.nbytes / 1e6}
    out["threads"] = threads
    speed = 2 * x.nbytes / min(out["copy"], out["copy past cache"])
    out["GB/s"] = speed / 1e6
    out["forward of copy"] = 2 * x.nbytes / out["forward"] / speed
    out["backward of copy"] = 3 * x.nbytes / out["backward"] / speed
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", nargs="+", choices=list(PROBLEMS))
    parser.add_argument("--dtypes", nargs="+", default=["float32"])
    parser.add_argument(
        "--megabytes", type=int, nargs="+", default=sorted({100, beyond_the_caches()})
    )
    parser.add_argument("--peers", nargs="*", choices=["torch", "TF"], default=["torch", "TF"])
    parser.add_argument("--quick", action="store_true", help="no peers but the copy")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if options.quick:
        options.peers = []
    if len(options.threads) > 1:  # a process each: the peers fix their number at the start
        for threads in options.threads:
            at = sys.argv.index("--threads") if "--threads" in sys.argv else len(sys.argv)
            rest = sys.argv[1:at] + sys.argv[at + 1 + len(options.threads) :]
            subprocess.run([sys.executable, __file__, *rest, "--threads", str(threads)], check=True)
        return
    run(options, options.threads[0])


if __name__ == "__main__":
    main()
