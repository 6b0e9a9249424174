"""What has one sample beside others of many, as XLA compiles it."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf
from channel_norms import FLOAT32, Norm
from support import DTYPES
from test_shared_samples import NORMS, SHARED, Case, check


@pytest.mark.parametrize("shared", SHARED, ids=str)
@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_as_if_each_had_all_samples(
    compiled: Any, device: str, norm: Norm, shared: tuple[bool, ...]
) -> None:
    check(compiled, Case(norm, shared, 0.0, FLOAT32), 0.0, device)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type(compiled: Any, device: str, dtype: str) -> None:
    check(compiled, Case(NORMS[0], (True, False, True), 1.0, DTYPES[dtype]), 1.0, device)


def test_no_samples(compiled: Any, device: str) -> None:
    with tf.device(device):
        y = compiled.fused_instance_norm(
            x=tf.ones([1, 5, 3]), scale=[tf.zeros([0, 3])], offset=[], out_type=tf.float32,
            per_sample=True,
        )[0]  # fmt: skip
    assert y.shape == [0, 5, 3]
