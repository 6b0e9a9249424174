"""The ways in which TensorFlow runs a function."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf


@pytest.fixture(params=["eager", "function", "xla"])
def run(request: pytest.FixtureRequest) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Wraps a function so that it runs op by op, in a graph, or compiled by XLA."""
    if request.param == "eager":
        return lambda function: function
    return functools.partial(tf.function, jit_compile=request.param == "xla")
