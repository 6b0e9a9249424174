"""What has one sample beside others of many, as XLA compiles it."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf
from channel_norms import FLOAT32, Norm
from row_norms import RowNorm
from support import DTYPES
from test_shared_samples import CHANNELS, NORMS, ROWS, SHARED, Case, check


@pytest.mark.sampled(4)
@pytest.mark.parametrize("shared", [(False, False, False), *SHARED], ids=str)
@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_as_if_each_had_all_samples(
    compiled: Any, device: str, norm: Norm | RowNorm, shared: tuple[bool, ...]
) -> None:
    slope = 0.0 if isinstance(norm, Norm) else 1.0
    check(compiled, Case(norm, shared, slope, FLOAT32), slope, device)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("norm", [CHANNELS[0], ROWS[0]], ids=str)
def test_every_type(compiled: Any, device: str, norm: Norm | RowNorm, dtype: str) -> None:
    check(compiled, Case(norm, (True, False, True), 1.0, DTYPES[dtype]), 1.0, device)


def test_no_samples(compiled: Any, device: str) -> None:
    with tf.device(device):
        y = compiled.fused_instance_norm(
            x=tf.ones([1, 5, 3]), scale=[tf.zeros([0, 3])], offset=[], out_type=tf.float32,
            per_sample=True,
        )[0]  # fmt: skip
    assert y.shape == [0, 5, 3]
