"""The CUDA kernels on torch tensors, without TensorFlow, against float64 from the formulas."""

from __future__ import annotations

import math

import pytest
from cuda_cases import (
    BF16,
    EPSILON,
    F16,
    F32,
    F64,
    SMALL,
    check,
    library,
    poisoned,
    reference,
    run_case,
    run_mixed,
    torch,
    views,
)

# rows, columns: each step of the ladders and its edges, odd and even
ROWS = [
    (7, 1), (5, 3), (1001, 4), (333, 10), (64, 63), (65, 64), (129, 65), (17, 100), (40, 256),
    (33, 257), (21, 512), (20, 513), (9, 768), (8, 1000), (8, 1024), (5, 1025), (6, 2048),
    (3, 4097), (140, 3000), (3, 8192), (2, 8193),
    (3, 16384), (70, 16385), (67, 20000), (2, 32769), (66, 40004), (1, 70001),
    (3, 65536), (2, 100000), (70, 65540), (67, 131072),
    # some rows to a warp, all at once
    (37, 192), (70, 200), (133, 320), (258, 384), (131, 640), (9, 300), (1, 512), (14, 128),
    (140, 8192), (1400, 10000), (67, 12288), (200, 131072),
    # blocks that add up sums of columns together, of an odd number of warps too
    (1400, 768), (700, 1280), (1300, 1025), (1200, 1030), (600, 2560), (300, 4096), (600, 5120),
]  # fmt: skip
LARGE = [
    (4, 400001), (3, 1000000), (70, 140000), (100000, 33), (20000, 1000), (2, 10000001),
    (4300, 6144), (4300, 10000), (400, 100000), (280, 131072), (9, 1081344), (100001, 100),
    (50001, 384), (30003, 640),
    # rows that blocks draw, as DRAWN
    (2001, 16384), (13900, 4616), (15700, 4096), (8000, 8184),
]  # fmt: skip
DRAWN = (2700, 12288)
SMALL_ROWS = [
    (7, 1), (33, 10), (9, 65), (5, 257), (5, 512), (3, 1000), (3, 1025), (2, 4096), (2, 8193),
    (7, 192), (9, 384), (6, 640),
    (67, 16400), (2, 20004), (1, 20001), (140, 8200),
    (400, 2560), (280, 4096), (280, 4094),
]  # fmt: skip
# shape, axis; or shape, groups, channels_last
OTHERS = [
    ((2, 5, 3, 7), [0]), ((2, 5, 3, 7), [1]), ((2, 5, 3, 7), [0, 2]), ((2, 5, 3, 8), [1, 3]),
    ((2, 300, 9), [1]), ((3, 200, 64), [1]), ((3, 4, 2, 3, 2), [0, 2, 4]), ((11,), [0]),
    ((2, 5, 12), 1, True), ((2, 5, 12), 3, True), ((2, 5, 12), 12, True), ((2, 7, 5, 6), 2, True),
    ((2, 33, 33, 32), 4, True), ((2, 33, 33, 32), 32, True), ((1, 400, 5), 5, True),
    ((2, 9, 1500), 3, True), ((2, 12, 5), 1, False), ((2, 12, 5), 3, False),
    ((2, 12, 5), 12, False), ((2, 6, 35, 35), 2, False), ((2, 6, 35, 35), 6, False),
    ((3, 4, 90, 90), 2, False), ((2, 3, 150, 150), 3, False),
    # alternating axes: few statistics, in chunks; the last axis kept, wide and narrow; few inputs
    ((300, 2, 188), [0, 2]), ((64, 3, 500, 2), [0, 2]), ((3, 7, 4, 300), [0, 2]),
    ((2, 1000, 3, 5), [1, 3]), ((1000, 2, 3), [0, 2]), ((2, 3000, 2), [0, 2]),
]  # fmt: skip
OTHERS_LARGE = [
    ((2, 64, 64, 64, 32), 32, True),
    ((2, 128, 128, 64), 8, True),
    ((2, 4, 400, 500), 2, False),
    ((30576, 2, 188), [0, 2]),
    ((4000, 3, 1000), [0, 2]),
    ((2, 300, 500, 33), [0, 2]),
]

BIG = [] if SMALL else [(DRAWN, [-1])]
ROW_CASES = [(shape, [-1]) for shape in [*(SMALL_ROWS if SMALL else ROWS + LARGE), DRAWN]]
OTHER_CASES = OTHERS if SMALL else OTHERS + OTHERS_LARGE


@pytest.mark.parametrize("case", ROW_CASES + OTHER_CASES, ids=str)
@pytest.mark.parametrize("dtype", [F32, BF16] if SMALL else [F32, BF16, F16, F64], ids=str)
def test_every_layout(case, dtype):
    run_case(case, dtype, param_type=dtype if dtype in (F64, BF16) else F32)


@pytest.mark.parametrize("case", [
    ((5, 100), [-1]), ((3, 1001), [-1]), ((3, 9000), [-1]), ((2, 70, 12), [1]),
    ((2, 3, 4, 6), [0, 2]),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("param_type", [F16, F64], ids=str)
@pytest.mark.parametrize("out_type", [F16, BF16, F32, F64], ids=str)
@pytest.mark.parametrize("dtype", [F16, F32, F64], ids=str)
def test_every_type(case, dtype, out_type, param_type):
    run_case(case, dtype, dy_type=out_type, param_type=param_type, out_type=out_type, units=16)


@pytest.mark.parametrize("case", ROW_CASES + OTHER_CASES, ids=str)
@pytest.mark.parametrize("other", [F16] if SMALL else [F16, BF16], ids=str)
def test_mixed_precision(case, other):
    run_mixed(case, other)


@pytest.mark.parametrize("case", [
    ((7, 10), [-1]), ((7, 100), [-1]), ((140, 8200), [-1]), ((70, 20000), [-1]),
    ((67, 131072), [-1]), ((2, 3000000), [-1]),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("settings", [
    {"misaligned": True}, {"mean": 1e6}, {"far": 1000.0}, {"params": False}, {"formula": "rms"},
    {"formula": "scale_only"}, {"param_type": F16},
], ids=str)  # fmt: skip
def test_mixed_precision_of_rows(case, settings):
    run_mixed(case, BF16, **settings)


@pytest.mark.parametrize("formula", ["scale_only", "rms"])
@pytest.mark.parametrize("case", [
    ((7, 100), [-1]), *BIG, ((5, 2000), [-1]), ((2, 40000), [-1]), ((70, 20000), [-1]),
    ((2, 70, 12), [1]), ((2, 3, 4, 6), [0, 2]),
], ids=str)  # fmt: skip
def test_other_formulas(case, formula):
    run_case(case, formula=formula)


@pytest.mark.parametrize("mean", [1e4, 1e6])
@pytest.mark.parametrize("case", [
    ((7, 100), [-1]), *BIG, ((5, 4096), [-1]), ((2, 100000), [-1]), ((70, 20000), [-1]),
    ((2, 4000, 12), [1]), ((2, 4000, 12), 3, True),
], ids=str)  # fmt: skip
def test_large_means(case, mean):
    run_case(case, mean=mean)


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
@pytest.mark.parametrize("case", [
    ((7, 100), [-1]), ((4, 46458), [-1]), ((2, 100000), [-1]), ((70, 20000), [-1]),
    ((9, 30006), [-1]),
], ids=str)  # fmt: skip
def test_large_means_in_16_bits(case, dtype):
    run_case(case, dtype=dtype, mean=1e4)


@pytest.mark.parametrize("case", [
    ((7, 100), [-1]), *BIG, ((5, 4096), [-1]), ((140, 8192), [-1]), ((140, 12000), [-1]),
    ((70, 20000), [-1]), ((67, 131072), [-1]), ((2, 100000), [-1]),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_first_columns_far_from_the_others(case, dtype):
    run_case(case, dtype, far=1000.0)


@pytest.mark.parametrize("case", [
    ((7, 100), [-1]), ((9, 384), [-1]), ((5, 4096), [-1]), ((140, 12000), [-1]), *BIG,
], ids=str)  # fmt: skip
def test_first_columns_too_far_to_sum_squares_about(case):
    # float32 holds eight squares of 10^18, not those of 12000 columns about the first ones.
    run_case(case, BF16, far=1e18)


@pytest.mark.parametrize("case", [
    ((7, 100), [-1]), ((5, 4096), [-1]), ((2, 100000), [-1]), ((70, 20000), [-1]),
    ((2, 400, 12), [1]), ((2, 400, 12), 3, True),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
def test_misaligned_tensors(case, dtype):
    run_case(case, dtype, misaligned=True)


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("param_type", [F32, BF16], ids=str)
@pytest.mark.parametrize("misaligned", [0, 2])
@pytest.mark.parametrize("case", [
    ((7, 100), [-1]), ((9, 1030), [-1]), ((40, 4098), [-1]), ((300, 8192), [-1]),
    ((4, 10002), [-1]), ((70, 20000), [-1]), ((2, 100002), [-1]), ((2, 400, 16), [1]),
    ((2, 16, 403), 4, False),
], ids=str)  # fmt: skip
def test_parameters_that_are_less_aligned_than_x(case, dtype, param_type, misaligned):
    run_case(case, dtype, param_type=param_type, misaligned=misaligned, params_misaligned=1)


@pytest.mark.parametrize("case", [
    ((7, 100), [-1]), ((3, 9000), [-1]), ((2, 100000), [-1]), ((2, 400, 12), [1]),
    ((2, 12, 400), 3, False),
], ids=str)  # fmt: skip
def test_no_parameters(case):
    run_case(case, params=False)


@pytest.mark.skipif(SMALL, reason="large")
def test_rows_that_are_more_than_two_to_the_31_bytes_apart():
    """Instance norm of 2^24 channels, in bfloat16: 17 GB of x."""
    torch.manual_seed(1)
    shape = (1, 512, 2**24)
    x = torch.empty(shape, dtype=BF16, device="cuda").normal_(0.5, 2.0)
    y, dx = poisoned(shape, BF16), poisoned(shape, BF16)
    m, r = poisoned(shape[-1:], F32), poisoned(shape[-1:], F32)
    kwargs = {"groups": shape[-1], "channels_last": True}
    library.forward(x, None, None, y, m, r, epsilon=EPSILON, **kwargs)()
    library.backward(x, x, None, m, r, dx, None, None, **kwargs)()
    torch.cuda.synchronize()
    for value in (y, dx):
        for row in range(0, shape[1], 64):
            assert not bool(torch.isnan(value[:, row : row + 64]).any())
    for first in (0, 2**23 - 100, 2**24 - 300):
        piece = x[..., first : first + 300].contiguous()
        expected = reference((piece.shape, 300, True), piece, None, None, piece, "center")
        check("y", y[..., first : first + 300].contiguous(), expected["y"], 8)
        check("dx", dx[..., first : first + 300].contiguous(), expected["dx"], 8)


@pytest.mark.skipif(SMALL, reason="large")
@pytest.mark.parametrize("case", [
    ((2**21 + 3, 1030), [-1]), ((5, 2**29 + 77), [-1]), ((2, 2**26, 20), 5, True),
], ids=str)  # fmt: skip
def test_more_than_two_to_the_31_elements(case):
    """In bfloat16, where x, dy, y and dx are more than 2^31 elements together or each."""
    torch.manual_seed(1)
    shape = case[0]
    x = torch.empty(shape, dtype=BF16, device="cuda").normal_(0.5, 2.0)
    y = poisoned(shape, BF16)
    kwargs, split, reduced, params = views(case, x)
    stats = math.prod(n for a, n in enumerate(split) if a not in [r % len(split) for r in reduced])
    m, r = poisoned((stats,), F32), poisoned((stats,), F32)
    library.forward(x, None, None, y, m, r, epsilon=EPSILON, **kwargs)()
    dx = poisoned(shape, BF16)
    library.backward(x, x, None, m, r, dx, None, None, **kwargs)()
    torch.cuda.synchronize()
    # The first and the last piece of the batch against float64, which would not fit for all of it.
    for n in (0, shape[0] - 1):
        one = (1, *shape[1:])
        piece = x[n : n + 1]
        if math.prod(one) > 2**27:
            assert not bool(torch.isnan(y[n]).any()) and not bool(torch.isnan(dx[n]).any())
            sample = slice(0, 2**24)
            mean, rstd = (
                piece.float().double().mean() if len(case) == 2 else None,
                r.view(shape[0], -1)[n],
            )
            if mean is not None:
                expected = (piece[0, sample].double() - mean) * rstd.double()
                torch.testing.assert_close(y[n, sample].double(), expected, rtol=1e-2, atol=1e-2)
            continue
        expected = reference((one, *case[1:]), piece, None, None, piece, "center")
        check("y", y[n : n + 1], expected["y"], 8)
        check("dx", dx[n : n + 1], expected["dx"], 8)
