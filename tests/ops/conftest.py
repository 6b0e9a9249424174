"""The op library under test, and the devices it is tested on."""

from __future__ import annotations

import os
from typing import Any

import pytest
import tensorflow as tf

DEVICES = ["CPU", pytest.param("GPU", marks=pytest.mark.gpu)]


@pytest.fixture(scope="session")
def ops() -> Any:
    """The op wrappers: of the library NV_NORMS_LIBRARY names, else of the package."""
    path = os.environ.get("NV_NORMS_LIBRARY")
    if path:
        return tf.load_op_library(path)
    from nv_norms_rewriter import _library

    return _library.ops()


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "GPU" and not tf.config.list_physical_devices("GPU"):
        pytest.skip("TensorFlow sees no GPU")
    return f"/device:{request.param}:0"
