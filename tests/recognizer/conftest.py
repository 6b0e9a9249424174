"""What the recognizer is known to get wrong: delete a line here when it is mended."""

from __future__ import annotations

import pytest

KNOWN = {
    "test_branch_that_only_a_constant_belongs_to[False": "control edges of constants are dropped",
    "test_nodes_without_a_device_stay_without_one": "new nodes keep the assumed device",
    "test_session_that_feeds_an_inner_tensor[mean": "fed tensors are not told apart",
    "test_session_that_feeds_an_inner_tensor[variance": "fed tensors are not told apart",
    "test_session_that_feeds_an_inner_tensor[epsilon": "fed tensors are not told apart",
    "test_epsilon_outside_the_root[1e-15": "no draw is small enough to see it",
    "test_epsilon_outside_the_root[1e-20": "no draw is small enough to see it",
    "test_largest_of_variance_and_epsilon[1e-16": "no draw is small enough to see the clamp",
    "test_largest_of_variance_and_epsilon[1e-20": "no draw is small enough to see the clamp",
    "test_unit_norm_times_root_of_size": "no draw is small enough to see the clamp",
    "test_input_that_is_clamped_keeps_its_clamp[1000000.0": "no draw reaches the clamp",
    "test_input_that_is_clamped_keeps_its_clamp[1e+20": "no draw reaches the clamp",
    "test_variance_that_is_clamped_from_above[1000000000000.0": "no draw reaches the clamp",
    "test_bias_add_along_channels_first": "BiasAdd of channels first is taken for a plain sum",
    "test_reshape_that_permutes_an_unknown": "an unknown size is assumed too early",
    "test_squeeze_without_axes[1": "an unknown size is taken not to be 1",
    "test_unknown_rank_over_axis_1": "the rank is taken to be the smallest that fits",
    "test_gamma_whose_size_is_unknown[1": "an unknown size is taken not to be 1",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for test, why in KNOWN.items():
            if item.name.startswith(test):
                item.add_marker(pytest.mark.xfail(reason=why, strict=False))
