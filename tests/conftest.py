"""What all tests share: printed seeds, devices, the marker gpu."""

from __future__ import annotations

import math
import os
import sys
import zlib
from collections.abc import Iterator

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
# TensorFlow has oneDNN on or off by the CPU it runs on; its remapper makes oneDNN's norms of some
# graphs only if it is on, and tests look at what becomes of these.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
# Else the first of several processes takes a GPU's whole memory.
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")


def _why_no_gpu() -> str:
    """ "" where the gpu tests can run, else what is missing."""
    import tensorflow as tf

    if not tf.config.list_physical_devices("GPU"):
        return "TensorFlow finds no GPU on this machine"
    from nv_norms_rewriter import _library

    usable, message = _library.core().cuda_devices()
    return "" if usable else message


def _sample(items: list[pytest.Item]) -> None:
    """Marks as slow the cases of tests marked sampled(n) but for one in n, the same ones always.

    By their names' checksums, as every n-th would leave out values of a parameter altogether.
    """
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sampled"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for all_of_one in cases.values():
        (n,) = all_of_one[0].get_closest_marker("sampled").args
        ordered = sorted(all_of_one, key=lambda item: zlib.crc32(item.name.encode()))
        for item in ordered[math.ceil(len(ordered) / n) :]:
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(tryfirst=True)  # before the cases that are marked slow are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    _sample(items)
    wanting = [item for item in items if item.get_closest_marker("gpu")]
    if not wanting:
        return
    why = _why_no_gpu()
    if why:
        for item in wanting:
            item.add_marker(pytest.mark.skip(reason=f"needs an NVIDIA GPU: {why}"))


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers from a seed that belongs to the test's name; a failure shows it.

    NV_NORMS_SEED=N in the environment sets another seed.
    """
    seed = int(os.environ.get("NV_NORMS_SEED", zlib.crc32(request.node.nodeid.encode())))
    print(f"seed {seed} (NV_NORMS_SEED={seed} repeats it)")
    return np.random.default_rng(seed)


@pytest.fixture(params=["CPU", pytest.param("GPU", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Each device that the ops have kernels for."""
    return f"/device:{request.param}:0"


@pytest.fixture(autouse=True, scope="session")
def whole_float32() -> None:
    """Without it, a GPU's products and convolutions of float32 keep ten bits of a factor."""
    if tensorflow := sys.modules.get("tensorflow"):
        tensorflow.config.experimental.enable_tensor_float_32_execution(False)


@pytest.fixture
def every_norm() -> Iterator[None]:
    """In XLA, too, every norm is fused, whether it pays or not; the report is empty at first."""
    import nv_norms_rewriter
    from nv_norms_rewriter import _process

    options = _process.state()["options"]
    before = dict(options)
    nv_norms_rewriter.configure(xla="all")
    nv_norms_rewriter.clear_report()
    yield
    options.clear()
    options.update(before)
