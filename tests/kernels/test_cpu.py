"""The CPU kernels on NumPy arrays, without TensorFlow, against float64 from the formulas.

Needs build/libnv_norms_cpu_kernels.so (benchmarks/kernels/build_cpu.sh), or NV_NORMS_CPU_KERNELS;
NV_NORMS_CPU_TARGET chooses the instruction set. tests/kernels/cpu_targets.sh runs this for each,
and with sanitizers.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks" / "kernels"), str(ROOT / "tests" / "ops")]

import cpu_library  # noqa: E402
import formulas  # noqa: E402

if not Path(os.environ.get("NV_NORMS_CPU_KERNELS", str(cpu_library.DEFAULT))).exists():
    pytest.skip("build/libnv_norms_cpu_kernels.so is not built", allow_module_level=True)

EPSILON = 1e-3
BF16 = np.dtype(ml_dtypes.bfloat16)
F16, F32, F64 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)
TYPES = [F16, BF16, F32, F64]
MIXED = [(F32, F16, F32), (F16, F32, F32), (BF16, BF16, F64), (F64, F32, F16), (F16, BF16, F32)]

# the kernel's arguments, x's shape: each step of the ladder and its edges, odd and even
CASES = [
    *[({"axis": [-1]}, shape) for shape in [
        (1, 1), (7, 1), (5, 3), (33, 15), (64, 16), (65, 17), (9, 64), (13, 65), (6, 100),
        (11, 257), (9, 768), (5, 1000), (4, 2048), (3, 2049), (6, 4100), (3, 16384), (70, 16390),
        (2, 32769), (1, 131073),
        # cut into slabs, some rows at a time and all
        (17, 70001), (3, 600001),
        # a vector of rows: whole blocks and parts of one
        (16, 1), (100, 2), (331, 3), (170, 5), (129, 10), (64, 12), (1000, 31),
        (75, 49), (75, 50), (50, 112), (50, 113),
    ]],
    ({"axis": [0, 1]}, (3, 7)), ({"axis": [0]}, (5, 4)), ({"axis": [1]}, (2, 5, 7)),
    ({"axis": [1]}, (3, 300, 70)), ({"axis": [1]}, (2, 9, 1100)), ({"axis": [0, 2]}, (2, 5, 3, 7)),
    # strips of channels, through a buffer
    ({"axis": [1]}, (4, 20, 1100)), ({"groups": 11, "channels_last": True}, (4, 33, 2200)),
    ({"axis": [1, 3]}, (2, 5, 3, 7)),
    *[({"groups": groups, "channels_last": True}, shape) for groups, shape in [
        (-1, (2, 5, 3)), (-1, (3, 9, 9, 33)), (-1, (1, 700, 5)), (-1, (2, 3, 1500)),
        # few positions: a vector of statistics at once, whole ones and parts
        (-1, (60, 2, 64)), (-1, (33, 4, 13)), (-1, (9, 3, 70)), (-1, (30, 2, 1)), (-1, (8, 5, 23)),
        (1, (2, 5, 4)), (2, (3, 6, 7, 12)), (4, (70, 6, 32)), (32, (2, 40, 40, 64)),
        (8, (3, 2000, 48)), (3, (2, 11, 1026)),
    ]],
    *[({"groups": groups, "channels_last": False}, shape) for groups, shape in [
        (-1, (2, 5, 9)), (-1, (3, 4, 20, 21)), (2, (3, 6, 7, 11)), (4, (2, 8, 130, 131)),
        # groups of [n, channels]: short, long, and cut into slabs
        (8, (37, 64)), (10, (11, 30)), (12, (13, 24)), (3, (19, 2400)), (4, (5, 9000)),
        (2, (3, 40000)),
        # a vector of rows with a parameter each: fewer channels than lanes, whole blocks and parts
        (-1, (9, 40, 2, 2)), (-1, (20, 3, 7)), (-1, (4, 32, 4, 4)), (-1, (2, 17, 63)),
        (-1, (3, 11, 64)), (-1, (3, 7, 112)), (-1, (3, 7, 121)), (-1, (2, 9, 128)),
        (-1, (2, 9, 129)),
    ]],
    # parameters of each sample
    *[({"groups": groups, "channels_last": last, "per_sample": True}, shape)
      for groups, last, shape in [
        (-1, True, (2, 5, 3)), (-1, True, (3, 9, 9, 33)), (-1, True, (1, 700, 5)),
        (-1, True, (60, 2, 64)), (-1, True, (33, 4, 13)), (1, True, (2, 5, 4)),
        (2, True, (3, 6, 7, 12)), (4, True, (70, 6, 32)), (8, True, (3, 2000, 48)),
        (3, True, (2, 11, 1026)), (11, True, (4, 33, 2200)), (-1, True, (9, 3000, 1)),
        (-1, False, (2, 5, 9)), (-1, False, (3, 4, 20, 21)), (2, False, (3, 6, 7, 11)),
        (4, False, (2, 8, 130, 131)), (8, False, (37, 64)), (3, False, (19, 2400)),
        (-1, False, (6, 20, 3, 3)),
    ]],
    # rows whose parameters are their sample's
    *[({"axis": axis, "per_sample": True}, shape) for axis, shape in [
        ([-1], (2, 5, 7)), ([2], (5, 1, 33)), ([-1], (3, 40, 1)), ([1], (6, 65)),
        ([-1], (1, 9, 12)),
        ([-1], (7, 31, 31)), ([-1], (3, 5, 7, 768)), ([1, 2], (4, 6, 10)), ([-1], (2, 300, 1152)),
        ([3, 2], (2, 3, 20, 65)), ([-1], (40, 17, 64)), ([-1], (2, 3, 70001)),
        ([-1], (3, 17, 16390)),
    ]],
]  # fmt: skip


def named(case: object) -> str | None:
    if isinstance(case, tuple) and isinstance(case[0], dict):
        return "-".join(f"{k}{v}" for k, v in case[0].items()) + "-" + "x".join(map(str, case[1]))
    return None


def views(case: tuple) -> tuple[tuple[int, ...], list[int], list[int]]:
    """The shape to reduce in, its reduced axes and those that the parameters span."""
    settings, shape = case
    if "axis" in settings:
        axes = sorted(a % len(shape) for a in settings["axis"])
        return shape, axes, [0, *axes] if settings.get("per_sample") else axes
    channel = len(shape) - 1 if settings["channels_last"] else 1
    groups = settings["groups"] if settings["groups"] > 0 else shape[channel]
    split = (*shape[:channel], groups, shape[channel] // groups, *shape[channel + 1 :])
    spanned = [channel, channel + 1]
    if settings.get("per_sample"):
        spanned.insert(0, 0)
    return split, [a for a in range(1, len(split)) if a != channel], spanned


def guarded(shape: tuple[int, ...], dtype: np.dtype, shift: int = 0) -> np.ndarray:
    """Poison, `shift` elements behind a multiple of 64 bytes: at an odd address if that is odd."""
    size = math.prod(shape)
    room = np.full(size + shift + 64 // dtype.itemsize, 97.0, dtype)
    begin = -room.ctypes.data % 64 // dtype.itemsize + shift
    return room[begin : begin + size].reshape(shape)


class Inputs(NamedTuple):
    x: np.ndarray
    dy: np.ndarray
    gamma: np.ndarray | None
    beta: np.ndarray | None


def draw(
    case: tuple,
    rng: np.random.Generator,
    types: tuple[np.dtype, np.dtype, np.dtype],
    params: tuple[bool, bool] = (True, True),
    shift: int = 0,
    x: np.ndarray | None = None,
) -> Inputs:
    split, _, spanned = views(case)
    x_type, y_type, param_type = types
    param_shape = tuple(split[a] for a in spanned)

    def normal(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        out = guarded(shape, dtype, shift)
        out[...] = rng.normal(0.5, 2.0, shape).astype(dtype)
        return out

    x = normal(case[1], x_type) if x is None else x
    dy = normal(case[1], y_type)
    gamma, beta = (normal(param_shape, param_type) if given else None for given in params)
    return Inputs(x, dy, gamma, beta)


def run(
    case: tuple,
    inputs: Inputs,
    param_type: np.dtype = F32,
    formula: str = "center",
    threads: int = 2,
    shift: int = 0,
    negative_slope: formulas.Slope = 1.0,
) -> dict[str, np.ndarray]:
    """Both passes: all outputs; no mean of RMS norms."""
    settings, shape = case
    split, reduced, spanned = views(case)
    x, dy, gamma, beta = inputs
    param_shape = tuple(split[a] for a in spanned)
    stat_type = F64 if x.dtype == F64 else F32
    stats = tuple(n for a, n in enumerate(split) if a not in reduced)
    y, dx = guarded(shape, dy.dtype, shift), guarded(shape, x.dtype, shift)
    mean = None if formula == "rms" else guarded(stats, stat_type)
    rstd = guarded(stats, stat_type)
    dgamma, dbeta = guarded(param_shape, param_type), guarded(param_shape, param_type)
    options = {**settings, "formula": formula, "epsilon": EPSILON, "threads": threads}
    options |= formulas.attributes_of(negative_slope)
    cpu_library.forward(x, gamma, beta, y, mean, rstd, **options)()
    unread = guarded(shape, dy.dtype, shift)
    cpu_library.forward(x, gamma, beta, unread, None, None, **options)()
    np.testing.assert_array_equal(unread, y, err_msg="y, where nobody reads the statistics")
    if negative_slope != 1.0:
        options["beta"] = beta
    cpu_library.backward(dy, x, gamma, mean, rstd, dx, dgamma, dbeta, **options)()
    outputs = {"y": y, "rstd": rstd, "dx": dx, "dgamma": dgamma, "dbeta": dbeta}
    return outputs if mean is None else {**outputs, "mean": mean}


def check(
    case: tuple,
    rng: np.random.Generator,
    types: tuple[np.dtype, np.dtype, np.dtype],
    formula: str = "center",
    params: tuple[bool, bool] = (True, True),
    threads: int = 2,
    shift: int = 0,
    x: np.ndarray | None = None,
    negative_slope: formulas.Slope = 1.0,
) -> None:
    """Runs both passes, and compares all outputs with the formulas."""
    inputs = draw(case, rng, types, params, shift, x)
    check_inputs(case, inputs, types[2], formula, threads, shift, negative_slope)


def check_inputs(
    case: tuple,
    inputs: Inputs,
    param_type: np.dtype,
    formula: str = "center",
    threads: int = 2,
    shift: int = 0,
    negative_slope: formulas.Slope = 1.0,
) -> dict[str, np.ndarray]:
    """The same of given inputs; returns the outputs. At an activation's kink dy is made 0."""
    split, reduced, spanned = views(case)
    x, gamma, beta = inputs.x.reshape(split), inputs.gamma, inputs.beta
    dy = inputs.dy.reshape(split)
    meant = (x, gamma, beta, reduced, spanned, EPSILON, formula)
    y, mean, rstd = formulas.norm(*meant)
    if negative_slope != 1.0:
        dy[formulas.near_zero(*meant)] = 0
    outputs = run(case, inputs, param_type, formula, threads, shift, negative_slope)

    size = np.sqrt(np.mean(y**2)) if negative_slope != 1.0 else None
    activated = formulas.activated(y, negative_slope)
    formulas.assert_close(outputs["y"].reshape(split), activated, what="y", size=size)
    if "mean" in outputs:
        formulas.assert_close(outputs["mean"], mean, what="mean")
    formulas.assert_close(outputs["rstd"], rstd, what="rstd")

    what = (dy, y, negative_slope)
    arguments = (x, gamma, reduced, spanned, EPSILON, formula)
    passed_size = formulas.passed_size(*what, formulas.t_sizes(*meant))
    sizes = formulas.gradient_sizes(passed_size, *arguments)
    wanted = formulas.norm_gradient(formulas.passed(*what), *arguments)
    for name, right, size in zip(("dx", "dgamma", "dbeta"), wanted, sizes, strict=True):
        got = outputs[name]
        if got.dtype == F64 and x.dtype != F64:
            got = got.astype(F32)  # no closer than mean and rstd, which are float32
        formulas.assert_close(
            got.reshape(split) if name == "dx" else got, right, what=name, size=size
        )
    return outputs


def check_threads(case: tuple, inputs: Inputs, threads: int, slope: formulas.Slope = 1.0) -> None:
    """With so many threads the outputs have the same bits as with one, which the formulas check."""
    first = check_inputs(case, inputs, F32, threads=1, negative_slope=slope)
    second = run(case, inputs, threads=threads, negative_slope=slope)
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=named)
def test_every_layout_and_type(case: tuple, dtype: np.dtype, rng: np.random.Generator) -> None:
    param_type = F64 if dtype == F64 else F32
    check(case, rng, (dtype, dtype, param_type))


# the last ones: whole samples that are larger than a core's cache, strips through a buffer
@pytest.mark.parametrize("types", MIXED, ids=str)
@pytest.mark.parametrize(
    "case",
    [
        *CASES[3::3],
        ({"groups": 32, "channels_last": True}, (8, 400, 1024)), ({"axis": [1]}, (8, 400, 1024)),
        ({"groups": 32, "channels_last": True}, (3, 400, 1024)), ({"axis": [1]}, (3, 400, 1024)),
    ],
    ids=named,
)  # fmt: skip
def test_mixed_types(case: tuple, types: tuple, rng: np.random.Generator) -> None:
    check(case, rng, types)


@pytest.mark.parametrize("formula", ["rms", "scale_only"])
@pytest.mark.parametrize("params", [(True, False), (False, True), (False, False)], ids=str)
@pytest.mark.parametrize("case", CASES[2::3], ids=named)
def test_formulas_and_absent_parameters(
    case: tuple, params: tuple[bool, bool], formula: str, rng: np.random.Generator
) -> None:
    if formula == "rms" and "axis" not in case[0]:
        formula = "center"
    check(case, rng, (F32, F32, F32), formula, params)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("case", CASES[1::2], ids=named)
def test_unaligned_tensors(case: tuple, dtype: np.dtype, rng: np.random.Generator) -> None:
    check(case, rng, (dtype, dtype, F32), shift=1)


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize(
    "case",
    [
        ({"axis": [-1]}, (90000, 100)), ({"axis": [-1]}, (5000, 1037)),
        ({"axis": [-1]}, (900001, 10)), ({"axis": [-1]}, (3000017, 3)),
        ({"axis": [-1]}, (180007, 48)),
        ({"axis": [-1]}, (3, 3_000_001)), ({"axis": [1]}, (40, 300, 701)),
        ({"groups": 4, "channels_last": True}, (70, 40, 41, 100)),
        ({"groups": -1, "channels_last": True}, (2, 300, 300, 48)),
        ({"groups": -1, "channels_last": False}, (100, 8, 103, 104)),
        ({"groups": -1, "channels_last": True, "per_sample": True}, (3, 300, 300, 48)),
        ({"groups": 32, "channels_last": True, "per_sample": True}, (17, 64, 64, 64)),
        ({"groups": 32, "channels_last": True, "per_sample": True}, (6, 700, 1024)),
        ({"axis": [-1], "per_sample": True}, (30, 300, 1152)),
        ({"axis": [-1], "per_sample": True}, (2, 4096, 1536)),
        ({"axis": [-1], "per_sample": True}, (2, 3, 1_500_001)),
        # whole samples, and strips of channels through a buffer
        ({"groups": 32, "channels_last": True}, (17, 64, 64, 64)), ({"axis": [1]}, (6, 700, 1024)),
        ({"groups": 32, "channels_last": True}, (6, 700, 1024)),
    ],
    ids=named,
)  # fmt: skip
def test_outputs_past_the_cache(case: tuple, dtype: np.dtype, rng: np.random.Generator) -> None:
    types = (dtype, dtype, F32)
    check(case, rng, types, shift=1)
    check_threads(case, draw(case, rng, types), threads=3)


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize(
    "case",
    [
        # some rows together, and rows a multiple of 4096 bytes long, which fall on each other
        *[({"axis": [-1]}, shape) for shape in [
            (35001, 128), (4700, 1008), (4601, 1024), (2301, 2048), (1150, 4096), (281, 16384),
            (141, 32768),
            # blocks of short rows, and two rows together
            (280003, 16), (95003, 47), (43003, 112), (18001, 256), (9001, 512),
            # rows that begin amid a line, stored through a buffer or not
            (39001, 113), (9001, 500), (4601, 1001), (2301, 2047),
        ]],
        ({"groups": -1, "channels_last": False}, (1500, 64, 7, 7)),
        ({"axis": [1]}, (5, 1024, 1024)), ({"groups": -1, "channels_last": True}, (16, 64, 64, 72)),
    ],
    ids=named,
)  # fmt: skip
def test_aligned_outputs_past_the_cache(
    case: tuple, dtype: np.dtype, rng: np.random.Generator
) -> None:
    settings, (first, *others) = case
    case = (settings, (first * 4 // dtype.itemsize, *others))
    types = (dtype, dtype, F32)
    check(case, rng, types)
    check_threads(case, draw(case, rng, types), threads=3)


@pytest.mark.parametrize("prefetch", ["stores", "passes"])
def test_outputs_past_the_cache_however_lines_are_prefetched(prefetch: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-k", "aligned_outputs", __file__],
        env=os.environ | {"NV_NORMS_CPU_PREFETCH": prefetch},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-1000:]


@pytest.mark.parametrize("case", CASES, ids=named)
def test_threads_do_not_change_the_bits(case: tuple, rng: np.random.Generator) -> None:
    for slope in (1.0, 0.01, "silu"):
        check_threads(case, draw(case, rng, (F32, F32, F32)), threads=4, slope=slope)


SLOPES = [0.0, 0.01, -0.5, 2.0, "silu"]


@pytest.mark.parametrize("slope", SLOPES)
@pytest.mark.parametrize("case", CASES, ids=named)
def test_activations(case: tuple, slope: formulas.Slope, rng: np.random.Generator) -> None:
    check(case, rng, (F32, F32, F32), negative_slope=slope)


@pytest.mark.parametrize(
    "types", [*((t, t, F64 if t == F64 else F32) for t in TYPES), *MIXED], ids=str
)
@pytest.mark.parametrize("case", CASES[1::4], ids=named)
def test_activations_of_every_type(case: tuple, types: tuple, rng: np.random.Generator) -> None:
    """y is rounded once, and dy times the slope not at all."""
    check(case, rng, types, negative_slope=0.01)
    check(case, rng, types, shift=1, negative_slope=0.0)
    check(case, rng, types, shift=1, negative_slope="silu")


@pytest.mark.parametrize("formula", ["center", "rms", "scale_only"])
@pytest.mark.parametrize("params", [(True, False), (False, True), (False, False)], ids=str)
@pytest.mark.parametrize("case", CASES[2::5], ids=named)
def test_activations_of_formulas_and_absent_parameters(
    case: tuple, params: tuple[bool, bool], formula: str, rng: np.random.Generator
) -> None:
    if formula == "rms" and "axis" not in case[0]:
        formula = "center"
    check(case, rng, (F32, F32, F32), formula, params, negative_slope=-0.5)
    check(case, rng, (F32, F32, F32), formula, params, negative_slope="silu")


@pytest.mark.parametrize("case", CASES[::2], ids=named)
def test_in_place(case: tuple, rng: np.random.Generator) -> None:
    for slope in (1.0, 0.01, "silu"):
        in_place({**case[0], **formulas.attributes_of(slope)}, case, rng)


def in_place(settings: dict, case: tuple, rng: np.random.Generator) -> None:
    _, shape = case
    split, reduced, spanned = views(case)
    x = rng.standard_normal(shape).astype(F32)
    gamma = rng.standard_normal([split[a] for a in spanned]).astype(F32)
    stats = [n for a, n in enumerate(split) if a not in reduced]
    mean, rstd = np.empty(stats, F32), np.empty(stats, F32)
    y = np.empty_like(x)
    cpu_library.forward(x, gamma, gamma, y, mean, rstd, threads=2, **settings)()
    cpu_library.forward(x, gamma, gamma, x, mean, rstd, threads=2, **settings)()
    np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize(
    ("name", "expected", "known"),
    [
        ("NV_NORMS_CPU_TARGET", "one that this CPU can run:", "baseline"),
        ("NV_NORMS_CPU_PREFETCH", "stores or", "passes"),
    ],
)
def test_an_unknown_word_is_named(name: str, expected: str, known: str) -> None:
    code = (
        "import numpy as np, cpu_library; x = np.zeros((2, 3), np.float32);"
        "cpu_library.forward(x, None, None, x, x[0], x[1], axis=[-1])()"
    )
    environment = os.environ | {name: "mmx", "PYTHONPATH": str(ROOT / "benchmarks" / "kernels")}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert f'{name} is "mmx", expected {expected}' in result.stderr
    assert known in result.stderr


@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="its shadow is larger")
@pytest.mark.parametrize("way", ["forward", "backward"])
def test_too_little_memory_for_an_activation_is_an_error(way: str) -> None:
    code = (
        "import resource, numpy as np, cpu_library;"
        "x = np.ones((1, 1 << 25, 1), np.float16); y = np.ones_like(x);"
        "stat = np.ones((1, 1), np.float32);"
        "options = {'negative_slope': 0.5, 'channels_last': True, 'threads': 1};"
        "forward = cpu_library.forward(x, None, None, y, stat, stat, **options);"
        "none = [None] * 2;"
        "backward = cpu_library.backward(x, x, None, stat, stat, y, *none, **options);"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize();"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (32 << 20),) * 2);"
        f"{way}()"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT / "benchmarks" / "kernels")}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert f"ValueError: an activation wants {4 << 25} bytes of memory" in result.stderr
