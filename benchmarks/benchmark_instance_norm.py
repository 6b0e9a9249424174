"""Instance norm of volumes, both layouts: Keras', XLA's and ours, over the shapes of nv_norms.

Prints NVIDIA's lines, "Input: (2, 128, 128, 128, 32) Time(ms): TF: 14.86 NV: 6.05", with more
columns behind (see WAYS in norm_steps.py). TF is keras.layers.GroupNormalization(groups=-1): Keras
has no other instance norm. Without a GPU the edges of the volumes are shorter by --divide.

Usage: python benchmarks/benchmark_instance_norm.py [--csv FILE] [--divide 4] [--ways TF NV XLA]
"""

from __future__ import annotations

import keras
import measure
import norm_steps

import nv_norms

# N, C, and the edge of the volume.
SHAPES = [
    (2, 32, 6),
    (2, 32, 128),
    (2, 64, 128),
    (4, 32, 128),
    (4, 64, 64),
    (8, 32, 64),
    (8, 64, 64),
    (8, 128, 64),
    (4, 256, 32),
    (8, 256, 32),
]


def main() -> None:
    parser = measure.parser(__doc__)
    norm_steps.add_options(parser, divide=4)
    parser.add_argument(
        "--layouts", nargs="+", choices=["last", "first"], default=["last", "first"]
    )
    options = parser.parse_args()
    print(measure.heading())
    for layout in options.layouts:
        axis, data_format = (-1, "N...C") if layout == "last" else (1, "NC...")
        for index in options.shapes or range(len(SHAPES)):
            n, c, edge = SHAPES[index]
            edges = [max(4, edge // options.divide)] * 3
            shape = (n, *edges, c) if layout == "last" else (n, c, *edges)
            result, fused = norm_steps.measure_shape(
                shape,
                lambda axis=axis: keras.layers.GroupNormalization(groups=-1, axis=axis),
                lambda axis=axis: nv_norms.InstanceNormalization(axis=axis),
                lambda x, gamma, beta, data_format=data_format: (
                    nv_norms.fused_instance_norm(x, gamma, beta, data_format).y
                ),
                options,
            )
            print(norm_steps.line(str(shape), result), flush=True)
            rows = norm_steps.rows(shape, data_format, result, fused, options)
            measure.write(options.csv, "instance_norm", rows)
        print(f"End of channel {layout} layout.")


if __name__ == "__main__":
    main()
