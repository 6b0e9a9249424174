"""The ops as XLA compiles them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import traced_activations
from traced import SHAPE, Layer


@pytest.fixture(scope="session")
def ops() -> Any:
    """The op wrappers of the package."""
    from nv_norms_rewriter import _library

    return _library.ops()


class Compiled:
    """The op wrappers, each call in a function that XLA compiles; its arrays are its inputs."""

    def __init__(self, ops: Any) -> None:
        self._ops = ops

    def __getattr__(self, name: str) -> Any:
        op = getattr(self._ops, name)

        def call(**arguments: Any) -> Any:
            tensors = {k: v for k, v in arguments.items() if _is_data(v)}
            attributes = {k: v for k, v in arguments.items() if k not in tensors}

            @tf.function(jit_compile=True, autograph=False)
            def run(inputs: dict[str, Any]) -> Any:
                return op(**inputs, **attributes)

            return run(tensors)

        return call


def _is_data(value: Any) -> bool:
    values = value if isinstance(value, list) else [value]
    return all(isinstance(v, (tf.Tensor, np.ndarray)) for v in values)


@pytest.fixture(scope="session")
def compiled(ops: Any) -> Compiled:
    return Compiled(ops)


@pytest.fixture
def layer(rng: np.random.Generator) -> Layer:
    return Layer(rng, SHAPE[-1])


@pytest.fixture
def x(rng: np.random.Generator) -> tf.Tensor:
    return tf.constant(rng.normal(1.0, 2.0, SHAPE), tf.float32)


@pytest.fixture
def dy(rng: np.random.Generator) -> tf.Tensor:
    return tf.constant(rng.normal(size=SHAPE), tf.float32)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions are traced as for a GPU."""
    from nv_norms_rewriter import _library, _trace_where

    monkeypatch.setattr(_trace_where, "device_type", lambda: "GPU")
    monkeypatch.setattr(_library, "gpus_are_usable", lambda: True)


@pytest.fixture
def enabled() -> Iterator[None]:
    """The rewriter is on, and on again for the next test."""
    import nv_norms_rewriter

    nv_norms_rewriter.enable()
    yield
    nv_norms_rewriter.enable()


@pytest.fixture
def norm(rng: np.random.Generator) -> traced_activations.Norm:
    return traced_activations.Norm(rng)


@pytest.fixture
def da(rng: np.random.Generator) -> tf.Tensor:
    return tf.constant(rng.normal(size=traced_activations.SHAPE), tf.float32)
