"""The CUDA kernel library (build/libnv_norms_kernels.so) on torch tensors."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from problem import Problem, backward_problem, forward_problem

DEFAULT = Path(__file__).resolve().parents[2] / "build" / "libnv_norms_kernels.so"


@functools.cache
def library() -> ctypes.CDLL:
    out = ctypes.CDLL(os.environ.get("NV_NORMS_KERNELS", str(DEFAULT)))
    out.HarnessForward.restype = out.HarnessBackward.restype = ctypes.c_int64
    return out


def _call(function: str, problem: Problem, tensors: Sequence[torch.Tensor | None]) -> object:
    """Something that launches the kernels once when called; its workspace is allocated here."""
    buffers = (ctypes.c_void_p * len(tensors))(
        *(None if t is None or t.numel() == 0 else t.data_ptr() for t in tensors)
    )
    error = ctypes.create_string_buffer(1000)
    call = getattr(library(), function)
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    empty = ctypes.c_int64(-1)
    size = call(ctypes.byref(problem), buffers, None, empty, stream, error, ctypes.c_int64(1000))
    if size < 0:
        raise ValueError(error.value.decode())
    # A guard of 16 bytes behind the workspace, which nothing may touch.
    workspace = torch.full((size + 16,), 0x5A, dtype=torch.uint8, device="cuda")
    arguments = (
        ctypes.byref(problem),
        buffers,
        ctypes.c_void_p(workspace.data_ptr()),
        ctypes.c_int64(size),
    )

    def run() -> None:
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        if call(*arguments, stream, error, ctypes.c_int64(1000)) < 0:
            raise RuntimeError(error.value.decode())

    run.workspace = workspace
    run.keep = (problem, buffers, tensors)
    return run


def forward(
    x: torch.Tensor,
    gamma: torch.Tensor | None,
    beta: torch.Tensor | None,
    y: torch.Tensor,
    mean: torch.Tensor | None,
    rstd: torch.Tensor | None,
    **kwargs: object,
) -> object:
    problem = forward_problem(x, gamma, beta, y, **kwargs)
    return _call("HarnessForward", problem, (x, gamma, beta, y, mean, rstd))


def backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    gamma: torch.Tensor | None,
    mean: torch.Tensor | None,
    rstd: torch.Tensor,
    dx: torch.Tensor | None,
    dgamma: torch.Tensor | None,
    dbeta: torch.Tensor | None,
    beta: torch.Tensor | None = None,
    **kwargs: object,
) -> object:
    """beta: what the gradient of an activation reads."""
    problem = backward_problem(dy, x, gamma, beta, dx, dgamma, dbeta, **kwargs)
    return _call("HarnessBackward", problem, (dy, x, gamma, beta, mean, rstd, dx, dgamma, dbeta))
