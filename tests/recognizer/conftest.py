"""What tests of the recognizer share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import tensorflow as tf


@pytest.fixture
def old_control_flow() -> Iterator[None]:
    """Switch, Merge, Enter, NextIteration in place of If and While."""
    tf.compat.v1.disable_control_flow_v2()
    yield
    tf.compat.v1.enable_control_flow_v2()
