"""The devices of these tests, and the ways in which TensorFlow runs a function."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(params=["CPU", pytest.param("GPU", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    return f"/device:{request.param}:0"


@functools.cache
def xla_kernels_missing() -> str:
    """ "" if XLA can compile the ops here; else what it says."""
    import nv_norms

    compiled = tf.function(lambda x: nv_norms.fused_layer_norm(x).y, jit_compile=True)
    try:
        compiled(tf.ones((2, 4)))
    except tf.errors.InvalidArgumentError as error:
        if "unsupported operation" in str(error) or "No registered" in str(error):
            return "the ops have no kernels for XLA in this build"
        raise
    return ""


@pytest.fixture(params=["eager", "function", "xla"])
def run(request: pytest.FixtureRequest) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Wraps a function so that it runs op by op, in a graph, or compiled by XLA."""
    if request.param == "eager":
        return lambda function: function
    if request.param == "xla" and xla_kernels_missing():
        pytest.skip(xla_kernels_missing())
    return functools.partial(tf.function, jit_compile=request.param == "xla")
