"""The op library under test."""

from __future__ import annotations

import os
from typing import Any

import pytest
import tensorflow as tf


@pytest.fixture(scope="session")
def ops() -> Any:
    """The op wrappers: of the library NV_NORMS_LIBRARY names, else of the package."""
    path = os.environ.get("NV_NORMS_LIBRARY")
    if path:
        return tf.load_op_library(path)
    from nv_norms_rewriter import _library

    return _library.ops()
