"""enable(), disable(), disabled(), is_enabled()."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import tensorflow as tf

import nv_norms_rewriter
import oracle


@pytest.fixture(autouse=True)
def _as_imported() -> Iterator[None]:
    nv_norms_rewriter.enable()
    nv_norms_rewriter.clear_report()
    yield
    nv_norms_rewriter.enable()


def _norm() -> Callable[[tf.Tensor], tf.Tensor]:
    def function(x: tf.Tensor) -> tf.Tensor:
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        return tf.nn.relu((x - mean) * tf.math.rsqrt(variance + 1e-3) * 2.0)

    return tf.function(function)


@pytest.fixture
def x(rng: np.random.Generator) -> tf.Tensor:
    return tf.constant(rng.normal(1.0, 3.0, (5, 7)), tf.float32)


def _check(y: tf.Tensor, x: tf.Tensor) -> None:
    expected = np.maximum(oracle.layer_norm(x.numpy(), np.full(7, 2.0), None, -1, 1e-3).y, 0)
    np.testing.assert_allclose(y, expected, 1e-5, 1e-5)


def test_disable_and_enable(x: tf.Tensor) -> None:
    assert nv_norms_rewriter.is_enabled()
    nv_norms_rewriter.disable()
    nv_norms_rewriter.disable()
    assert not nv_norms_rewriter.is_enabled()
    _check(_norm()(x), x)
    assert len(nv_norms_rewriter.report()) == 0
    assert "Note: the rewriter is off" in str(nv_norms_rewriter.report())
    nv_norms_rewriter.enable()
    nv_norms_rewriter.enable()
    assert nv_norms_rewriter.is_enabled()
    assert "the rewriter is off" not in str(nv_norms_rewriter.report())
    _check(_norm()(x), x)
    assert len(nv_norms_rewriter.report().fused) == 1


def test_disabled_restores_what_was_before(x: tf.Tensor) -> None:
    with nv_norms_rewriter.disabled():
        assert not nv_norms_rewriter.is_enabled()
        with nv_norms_rewriter.disabled():
            _check(_norm()(x), x)
        assert not nv_norms_rewriter.is_enabled()
    assert nv_norms_rewriter.is_enabled()
    nv_norms_rewriter.disable()
    with nv_norms_rewriter.disabled():
        pass
    assert not nv_norms_rewriter.is_enabled()
    assert len(nv_norms_rewriter.report()) == 0


def test_disabled_in_threads_that_overlap() -> None:
    """It is off until the last has left, and on afterwards."""
    with contextlib.ExitStack() as first, contextlib.ExitStack() as second:
        first.enter_context(nv_norms_rewriter.disabled())
        second.enter_context(nv_norms_rewriter.disabled())
        first.close()
        assert not nv_norms_rewriter.is_enabled()
        second.close()
        assert nv_norms_rewriter.is_enabled()


def test_disabled_ends_with_an_exception() -> None:
    with pytest.raises(KeyError), nv_norms_rewriter.disabled():
        raise KeyError
    assert nv_norms_rewriter.is_enabled()


def test_what_was_optimized_stays_as_it_is(x: tf.Tensor) -> None:
    stock, fused = _norm(), _norm()
    with nv_norms_rewriter.disabled():
        stock(x)
    fused(x)
    assert len(nv_norms_rewriter.report()) == 1
    stock(x)  # enabled now, but optimized before
    assert len(nv_norms_rewriter.report()) == 1
    with nv_norms_rewriter.disabled():
        _check(fused(x), x)
    _check(stock(x), x)


def test_a_seed_has_functions_optimized_anew(x: tf.Tensor) -> None:
    stock = _norm()
    with nv_norms_rewriter.disabled():
        stock(x)
    tf.random.set_seed(1)
    _check(stock(x), x)
    assert len(nv_norms_rewriter.report().fused) == 1
