"""The CPU kernel library (build/libnv_norms_cpu_kernels.so, build_cpu.sh) on NumPy arrays."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

TYPES = {"float16": 0, "bfloat16": 1, "float32": 2, "float64": 3}
FORMULAS = {"center": 0, "scale_only": 1, "rms": 2}
DEFAULT = Path(__file__).resolve().parents[2] / "build" / "libnv_norms_cpu_kernels.so"


class Problem(ctypes.Structure):
    _fields_ = [
        ("dims", ctypes.c_int64 * 16),
        ("rank", ctypes.c_int64),
        ("axis", ctypes.c_int64 * 16),
        ("count_axis", ctypes.c_int64),
        ("groups", ctypes.c_int64),
        ("channels_last", ctypes.c_int64),
        ("formula", ctypes.c_int64),
        ("epsilon", ctypes.c_double),
        ("x", ctypes.c_int64),
        ("param", ctypes.c_int64),
        ("y", ctypes.c_int64),
        ("dy", ctypes.c_int64),
        ("dparam", ctypes.c_int64),
    ]


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


def make_problem(
    x: np.ndarray,
    axis: Sequence[int] = (),
    groups: int = -1,
    channels_last: bool = True,
    formula: str = "center",
    epsilon: float = 1e-3,
) -> Problem:
    """axis: of a layer or RMS norm; without it a group norm, groups = -1: an instance norm."""
    out = Problem()
    out.rank = x.ndim
    out.dims[: x.ndim] = list(x.shape)
    out.count_axis = len(axis)
    out.axis[: len(axis)] = list(axis)
    out.groups, out.channels_last = groups, int(channels_last)
    out.formula, out.epsilon = FORMULAS[formula], epsilon
    out.x = out.param = TYPES[x.dtype.name]
    return out


def forward(
    x: np.ndarray,
    gamma: np.ndarray | None,
    beta: np.ndarray | None,
    y: np.ndarray,
    mean: np.ndarray | None,
    rstd: np.ndarray,
    threads: int = 1,
    **kwargs: object,
) -> Callable[[], None]:
    """A forward pass into y, mean, rstd, which the caller allocates."""
    problem = make_problem(x, **kwargs)
    problem.y = TYPES[y.dtype.name]
    for param in (gamma, beta):
        if param is not None:
            problem.param = TYPES[param.dtype.name]
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
    **kwargs: object,
) -> Callable[[], None]:
    """A backward pass into those of dx, dgamma, dbeta that are not None."""
    problem = make_problem(x, **kwargs)
    problem.dy = TYPES[dy.dtype.name]
    if gamma is not None:
        problem.param = TYPES[gamma.dtype.name]
    problem.y = TYPES[(x if dx is None else dx).dtype.name]
    # The type of an output that is not wanted must not make the computation wider.
    problem.dparam = TYPES["float32"]
    for param in (dgamma, dbeta):
        if param is not None:
            problem.dparam = TYPES[param.dtype.name]
    arrays = (dy, x, gamma, mean, rstd, dx, dgamma, dbeta)
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
