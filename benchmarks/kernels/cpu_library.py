"""The CPU kernel library (build/libnv_norms_cpu_kernels.so, build_cpu.sh) on NumPy arrays."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from problem import Problem, backward_problem, forward_problem

DEFAULT = Path(__file__).resolve().parents[2] / "build" / "libnv_norms_cpu_kernels.so"


@functools.cache
def library() -> ctypes.CDLL:
    out = ctypes.CDLL(os.environ.get("NV_NORMS_CPU_KERNELS", str(DEFAULT)))
    out.CpuForward.restype = out.CpuBackward.restype = ctypes.c_int64
    out.CpuTarget.restype = ctypes.c_char_p
    return out


def target() -> str:
    """The instruction set in use."""
    return library().CpuTarget().decode()


def _call(
    function: str, problem: Problem, arrays: Sequence[np.ndarray | None], threads: int
) -> Callable[[], None]:
    """Something that runs the kernels once when called."""
    call = getattr(library(), function)
    # NumPy's empty arrays have an address, which nothing may touch.
    buffers = (ctypes.c_void_p * len(arrays))(
        *(None if a is None else a.ctypes.data for a in arrays)
    )
    error = ctypes.create_string_buffer(1000)
    count = ctypes.c_int64(threads)
    size = ctypes.c_int64(1000)

    def run() -> None:
        if call(ctypes.byref(problem), buffers, count, error, size) < 0:
            raise ValueError(error.value.decode())

    run.keep = arrays
    return run


def forward(
    x: np.ndarray,
    gamma: np.ndarray | None,
    beta: np.ndarray | None,
    y: np.ndarray,
    mean: np.ndarray | None,
    rstd: np.ndarray | None,
    threads: int = 1,
    **kwargs: object,
) -> Callable[[], None]:
    """A forward pass into y and those of mean and rstd that are not None."""
    problem = forward_problem(x, gamma, beta, y, **kwargs)
    return _call("CpuForward", problem, (x, gamma, beta, y, mean, rstd), threads)


def backward(
    dy: np.ndarray,
    x: np.ndarray,
    gamma: np.ndarray | None,
    mean: np.ndarray | None,
    rstd: np.ndarray,
    dx: np.ndarray | None,
    dgamma: np.ndarray | None,
    dbeta: np.ndarray | None,
    threads: int = 1,
    beta: np.ndarray | None = None,
    **kwargs: object,
) -> Callable[[], None]:
    """A backward pass into those of dx, dgamma, dbeta that are not None.

    beta: what the gradient of an activation reads.
    """
    problem = backward_problem(dy, x, gamma, beta, dx, dgamma, dbeta, **kwargs)
    arrays = (dy, x, gamma, beta, mean, rstd, dx, dgamma, dbeta)
    return _call("CpuBackward", problem, arrays, threads)


def copy(source: np.ndarray, target: np.ndarray, stream: bool, threads: int) -> Callable[[], None]:
    """A copy with ordinary stores or such that go past the cache; 64-byte aligned, n * 64 bytes."""
    assert (
        target.ctypes.data % 64 == 0 and source.nbytes == target.nbytes and source.nbytes % 64 == 0
    )
    arguments = (
        ctypes.c_void_p(source.ctypes.data),
        ctypes.c_int64(source.nbytes),
        ctypes.c_void_p(target.ctypes.data),
        ctypes.c_int64(stream),
        ctypes.c_int64(threads),
    )

    def run() -> None:
        library().CpuCopy(*arguments)

    run.keep = (source, target)
    return run
