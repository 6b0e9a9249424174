"""XLA makes CUDA graphs of few kernels once it compiles a fused op for a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf
from processes import result

# XLA's own number, which a flag may name, too.
DEFAULT = 5
LEAST = """
import ctypes, json
import tensorflow as tf
import nv_norms_rewriter
from nv_norms_rewriter import _library

core = ctypes.CDLL(str(_library.LIBRARIES / _library.CORE))

@tf.function(jit_compile=True, autograph=False)
def run(x):
    return _library.ops().fused_layer_norm(x=x, scale=[], offset=[], out_type=tf.float32)[0]
"""
COMPILE = 'with tf.device("{}"): run(tf.ones([4, 8]))\n'
ALLOW = "core.NvNormsAllowSmallGraphs()\n"
SAY = "print(json.dumps(core.NvNormsLeastGraph()))"


def least(code: str, flags: str = "") -> int:
    return result(LEAST + code + SAY, XLA_FLAGS=flags)[0]


def test_a_function_for_the_cpu_changes_nothing() -> None:
    assert least(COMPILE.format("CPU:0")) == DEFAULT


def test_three_kernels_are_enough_once_it_is_allowed() -> None:
    assert least(ALLOW) == 3
    assert least(ALLOW, "--xla_cpu_enable_fast_math=false") == 3


@pytest.mark.parametrize("number", [1, DEFAULT, 9])
def test_what_xla_flags_says_stays(number: int) -> None:
    assert least(ALLOW, f"--xla_gpu_graph_min_graph_size={number}") == number


def test_what_a_file_of_flags_says_stays(tmp_path: Path) -> None:
    flags = tmp_path / "flags"
    flags.write_text("--xla_gpu_graph_min_graph_size=7\n")
    assert least(ALLOW, str(flags)) == 7


@pytest.mark.skipif(not tf.config.list_physical_devices("GPU"), reason="needs a GPU")
def test_a_function_for_a_gpu_allows_it() -> None:
    assert least(COMPILE.format("GPU:0")) == 3
