"""Layer norm of the last axis: Keras', XLA's and ours, over the shapes of NVIDIA's nv_norms.

Prints its lines, "Input: 10 10000000 Time(ms): TF: 16.91 NV: 2.36", with more columns behind (see
WAYS in norm_steps.py). Without a GPU the shapes are smaller by --divide.

Usage: python benchmarks/benchmark_layer_norm.py [--csv FILE] [--divide 10] [--ways TF NV XLA]
"""

from __future__ import annotations

import keras
import measure
import norm_steps

import nv_norms

SHAPES = [
    (10, 10000000),
    (100, 1000000),
    (1000, 100000),
    (10000, 10000),
    (100000, 1000),
    (1000000, 100),
    (10000000, 10),
    (4, 400001),
    (4, 10000001),
]


def smaller(shape: tuple[int, int], divide: int) -> tuple[int, int]:
    """The longer axis divided, odd sizes staying odd."""
    n, d = shape
    return (n, d // divide | d % 2) if d >= n else (n // divide, d)


def main() -> None:
    parser = measure.parser(__doc__)
    norm_steps.add_options(parser, divide=10)
    options = parser.parse_args()
    print(measure.heading())
    for index in options.shapes or range(len(SHAPES)):
        shape = smaller(SHAPES[index], options.divide)
        result, fused = norm_steps.measure_shape(
            shape,
            lambda: keras.layers.LayerNormalization(axis=1),
            lambda: nv_norms.LayerNormalization(axis=1),
            lambda x, gamma, beta: nv_norms.fused_layer_norm(x, gamma, beta).y,
            options,
        )
        print(norm_steps.line(f"{shape[0]} {shape[1]}", result), flush=True)
        rows = norm_steps.rows(shape, "", result, fused, options)
        measure.write(options.csv, "layer_norm", rows)


if __name__ == "__main__":
    main()
