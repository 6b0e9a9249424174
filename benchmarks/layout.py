"""How many Transposes of whole tensors are left in the training steps of whole models.

    PYTHONPATH=python python benchmarks/layout.py --out benchmarks/results/layout.md

The graphs come from TensorFlow's own passes with a virtual GPU (tests/layout/layout_emulation.py),
so no GPU is needed; nothing is timed. Three graphs of each model: TensorFlow's, the same after this
package's pass, and TensorFlow's of the model with its norms taken out.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["CUDA_VISIBLE_DEVICES"] = ""
ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "layout")]

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from keras import layers  # noqa: E402
from layout_emulation import optimize, trace, training_step, transposed_bytes  # noqa: E402

Norm = Callable[[], keras.layers.Layer]


def unet_3d(norm: Norm) -> keras.Model:
    """Conv3D, norm, LeakyReLU, twice a level; three levels; MaxPool down, Conv3DTranspose up."""

    def block(x, channels: int):
        for _ in range(2):
            x = layers.Conv3D(channels, 3, padding="same")(x)
            x = layers.LeakyReLU()(norm()(x))
        return x

    x = image = keras.Input((32, 32, 32, 4), batch_size=2)
    skips = []
    for channels in (16, 32):
        x = block(x, channels)
        skips.append(x)
        x = layers.MaxPooling3D()(x)
    x = block(x, 64)
    for channels, skip in zip((32, 16), reversed(skips), strict=True):
        x = layers.Conv3DTranspose(channels, 2, strides=2)(x)
        x = block(layers.Concatenate()([skip, x]), channels)
    return keras.Model(image, layers.Conv3D(3, 1)(x))


def diffusion_unet(norm: Norm) -> keras.Model:
    """Residual blocks (norm, SiLU, Conv2D, twice), attention in the middle."""

    def residual(x, channels: int):
        y = layers.Conv2D(channels, 3, padding="same")(layers.Activation("silu")(norm()(x)))
        y = layers.Activation("silu")(norm()(y))
        y = layers.Conv2D(channels, 3, padding="same")(y)
        if x.shape[-1] != channels:
            x = layers.Conv2D(channels, 1)(x)
        return layers.Add()([x, y])

    x = image = keras.Input((32, 32, 4), batch_size=4)
    x = layers.Conv2D(32, 3, padding="same")(x)
    skips = [x]
    for channels in (32, 64):
        x = residual(x, channels)
        skips.append(x)
        x = layers.Conv2D(channels, 3, strides=2, padding="same")(x)
    x = residual(x, 64)
    y = layers.Reshape((64, 64))(norm()(x))
    y = layers.MultiHeadAttention(2, 32)(y, y)
    x = residual(layers.Add()([x, layers.Reshape((8, 8, 64))(y)]), 64)
    for channels in (64, 32):
        x = layers.UpSampling2D()(x)
        x = layers.Conv2D(channels, 3, padding="same")(x)
        x = residual(layers.Concatenate()([skips.pop(), x]), channels)
    x = layers.Activation("silu")(norm()(x))
    return keras.Model(image, layers.Conv2D(4, 3, padding="same")(x))


def convnext(norm: Norm) -> keras.Model:
    """Depthwise 7 x 7, norm, Dense to four times the width, GELU, Dense back; the identity."""
    x = image = keras.Input((64, 64, 3), batch_size=4)
    for stage, channels in enumerate((32, 64, 128)):
        if stage:
            x = norm()(x)
        x = layers.Conv2D(channels, 2 if stage else 4, strides=2 if stage else 4)(x)
        if not stage:
            x = norm()(x)
        for _ in range(2):
            y = norm()(layers.Conv2D(channels, 7, padding="same", groups=channels)(x))
            y = layers.Dense(channels)(layers.Activation("gelu")(layers.Dense(4 * channels)(y)))
            x = layers.Add()([x, y])
    return keras.Model(image, layers.Dense(10)(norm()(layers.GlobalAveragePooling2D()(x))))


def resnet(norm: Norm) -> keras.Model:
    """Conv2D, norm, ReLU, three times a block, beside the identity."""
    x = image = keras.Input((64, 64, 3), batch_size=4)
    x = layers.ReLU()(norm()(layers.Conv2D(64, 7, strides=2, padding="same")(x)))
    x = layers.MaxPooling2D()(x)
    for channels in (64, 128):
        for number in range(2):
            strides = 2 if channels > 64 and number == 0 else 1
            y = layers.ReLU()(norm()(layers.Conv2D(channels // 4, 1)(x)))
            y = layers.Conv2D(channels // 4, 3, strides=strides, padding="same")(y)
            y = norm()(layers.Conv2D(channels, 1)(layers.ReLU()(norm()(y))))
            if x.shape[1:] != y.shape[1:]:
                x = norm()(layers.Conv2D(channels, 1, strides=strides)(x))
            x = layers.ReLU()(layers.Add()([x, y]))
    return keras.Model(image, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


INSTANCE = lambda: layers.GroupNormalization(groups=-1)  # noqa: E731
GROUP = lambda: layers.GroupNormalization(groups=8)  # noqa: E731
IDENTITY = lambda: layers.Identity()  # noqa: E731
MODELS = [
    ("3-D U-Net, instance norm", unet_3d, INSTANCE),
    ("3-D U-Net, group norm", unet_3d, GROUP),
    ("diffusion U-Net, group norm", diffusion_unet, GROUP),
    ("ConvNeXt, layer norm", convnext, layers.LayerNormalization),
    ("ResNet, group norm", resnet, GROUP),
    ("ResNet, layer norm", resnet, layers.LayerNormalization),
]


def measure(
    build: Callable[[Norm], keras.Model], norm: Norm, policy: str, batch: bool
) -> list[str]:
    """The cells of one row."""

    def graphs(of: Norm):
        keras.utils.set_random_seed(0)
        previous = keras.mixed_precision.dtype_policy()
        keras.mixed_precision.set_dtype_policy(policy)
        try:
            model = build(of)
        finally:
            keras.mixed_precision.set_dtype_policy(previous)
        shape = list(model.inputs[0].shape)
        if not batch:
            shape[0] = None
        graph, fetches = trace(training_step(model), [shape])
        return optimize(graph, fetches)

    stock, fused, report = graphs(norm)
    without = graphs(IDENTITY)[0]
    norms = [r for r in report if r.kind != "layout" and r.fused]
    cells = [f"{len(norms)} of {len([r for r in report if r.kind != 'layout'])}"]
    for graph in (stock, fused, without):
        sizes = [size for size in transposed_bytes(graph) if size > LARGE]
        cells.append(f"{len(sizes)} ({sum(sizes) / 2**20:.1f})")
    return cells


LARGE = 16 * 1024  # bytes: no parameter's Transpose


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--filter", default="")
    options = parser.parse_args()
    rows = []
    for name, build, norm in MODELS:
        for policy, batch in (("float32", True), ("float32", False), ("mixed_float16", True)):
            if options.filter not in name:
                continue
            label = f"{name}, {policy}{'' if batch else ', any batch'}"
            rows.append([label, *measure(build, norm, policy, batch)])
            print(" | ".join(rows[-1]), flush=True)
    if options.out:
        options.out.write_text(document(rows))


def document(rows: list[list[str]]) -> str:
    head = ["training step", "norms fused", "TensorFlow", "with this package", "without norms"]
    table = [head, ["---"] + ["--:"] * (len(head) - 1), *rows]
    lines = "\n".join("| " + " | ".join(row) + " |" for row in table)
    return f"""# Transposes in training steps

Transposes of more than {LARGE // 1024} KiB in the graph that would run on a GPU, and in brackets
the MiB that they transpose. TensorFlow: its own passes, the layout pass among them.
With this package: the same and our pass, both iterations. Without norms:
TensorFlow's graph of the model with its norms taken out.
An unknown batch counts as 2.

{lines}

`python benchmarks/layout.py --out benchmarks/results/layout.md`,
{datetime.date.today()}, TensorFlow {tf.__version__}, Keras {keras.__version__}, on a virtual GPU:
these are counts from graphs, nothing was timed.
"""


if __name__ == "__main__":
    np.random.seed(0)
    main()
