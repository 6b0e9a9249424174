"""Small models of the families that normalize, with the number of their norms, and data for them.

Each takes a `size`: 0 for the default tests, 1 for the slow ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import keras
import numpy as np
from keras import layers


@dataclasses.dataclass(frozen=True)
class Case:
    """make(size): a model and the shapes of its inputs; norms: their number by kind, by size;
    rates: steps of SGD small enough to descend smoothly, by size."""

    name: str
    make: Callable[[int], tuple[keras.Model, list[tuple[int, ...]]]]
    norms: tuple[dict[str, int], dict[str, int]]
    rates: tuple[float, float] = (0.02, 0.005)

    def data(self, model: keras.Model, shapes: list[tuple[int, ...]], seed: int):
        """Inputs and a target that the model can learn a part of."""
        rng = np.random.default_rng(seed)
        inputs = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
        target = rng.normal(size=(shapes[0][0], *model.output.shape[1:])).astype(np.float32)
        return inputs, target


def transformer(size: int) -> tuple[keras.Model, list[tuple[int, ...]]]:
    """Pre-norm blocks: two norms in each, and the last one."""
    depth, width, heads, length, batch = ((1, 16, 2, 6, 4), (4, 64, 4, 32, 8))[size]
    inputs = keras.Input((length, width))
    x = inputs
    for _ in range(depth):
        y = layers.LayerNormalization(epsilon=1e-5)(x)
        x = x + layers.MultiHeadAttention(heads, width // heads)(y, y)
        y = layers.LayerNormalization(epsilon=1e-5)(x)
        x = x + layers.Dense(width)(layers.Dense(4 * width, activation="gelu")(y))
    x = layers.LayerNormalization(epsilon=1e-5)(x)
    return keras.Model(inputs, layers.Dense(4, dtype="float32")(x)), [(batch, length, width)]


def convnext(size: int) -> tuple[keras.Model, list[tuple[int, ...]]]:
    """Stem, stages of blocks with one norm each and one before each next stage, the last one.

    Keras compiles depthwise convolutions by XLA, so that the rank of x is unknown behind them.
    """
    blocks, width, side, batch = (((1, 1), 8, 16, 4), ((2, 2, 2), 32, 32, 8))[size]
    inputs = keras.Input((side, side, 3))
    x = layers.Conv2D(width, 4, 4)(inputs)
    x = layers.LayerNormalization(epsilon=1e-6)(x)
    for stage, count in enumerate(blocks):
        channels = width << stage
        if stage:
            x = layers.LayerNormalization(epsilon=1e-6)(x)
            x = layers.Conv2D(channels, 2, 2)(x)
        for _ in range(count):
            y = layers.DepthwiseConv2D(7, padding="same")(x)
            y = layers.LayerNormalization(epsilon=1e-6)(y)
            y = layers.Dense(4 * channels, activation="gelu")(y)
            x = x + layers.Dense(channels)(y)
    x = layers.LayerNormalization(epsilon=1e-6)(layers.GlobalAveragePooling2D()(x))
    return keras.Model(inputs, layers.Dense(4, dtype="float32")(x)), [(batch, side, side, 3)]


def unet3d(size: int) -> tuple[keras.Model, list[tuple[int, ...]]]:
    """Two convolutions with instance norm on each level, downwards and upwards.

    Its activation is smooth: a kink, crossed by one rounding more, changes gradients at once.
    """
    levels, width, side, batch = ((1, 4, 8, 2), (2, 16, 16, 2))[size]

    def block(x, channels):
        for _ in range(2):
            x = layers.Conv3D(channels, 3, padding="same", use_bias=False)(x)
            x = layers.GroupNormalization(groups=-1)(x)
            x = layers.Activation("silu")(x)
        return x

    inputs = keras.Input((side, side, side, 1))
    x, skips = inputs, []
    for level in range(levels):
        x = block(x, width << level)
        skips.append(x)
        x = layers.Conv3D(width << (level + 1), 2, 2)(x)
    x = block(x, width << levels)
    for level in reversed(range(levels)):
        x = layers.Conv3DTranspose(width << level, 2, 2)(x)
        x = block(layers.Concatenate()([x, skips[level]]), width << level)
    return keras.Model(inputs, layers.Conv3D(1, 1, dtype="float32")(x)), [
        (batch, side, side, side, 1)
    ]


def diffusion_unet(size: int) -> tuple[keras.Model, list[tuple[int, ...]]]:
    """Residual blocks of two group norms, told the time between them; one before the output."""
    # TensorFlow convolves float16 on a CPU at a hundredth of its speed in float32 (0.3 against 37
    # billion products a second): with twice the width and side the test took 39 minutes.
    levels, width, groups, side, batch = ((1, 8, 2, 8, 2), (3, 16, 8, 16, 4))[size]
    image, time = keras.Input((side, side, 3)), keras.Input((8,))
    embedding = layers.Dense(2 * width, activation="silu")(time)

    def block(x, channels):
        y = layers.GroupNormalization(groups, epsilon=1e-5)(x)
        y = layers.Conv2D(channels, 3, padding="same")(layers.Activation("silu")(y))
        y = y + layers.Reshape((1, 1, channels))(layers.Dense(channels)(embedding))
        y = layers.GroupNormalization(groups, epsilon=1e-5)(y)
        y = layers.Conv2D(channels, 3, padding="same")(layers.Activation("silu")(y))
        return y + (x if x.shape[-1] == channels else layers.Conv2D(channels, 1)(x))

    x = layers.Conv2D(width, 3, padding="same")(image)
    skips = []
    for level in range(levels):
        x = block(x, width << level)
        skips.append(x)
        x = layers.Conv2D(width << (level + 1), 3, 2, padding="same")(x)
    x = block(x, width << levels)
    for level in reversed(range(levels)):
        x = layers.Conv2D(width << level, 3, padding="same")(layers.UpSampling2D()(x))
        x = block(layers.Concatenate()([x, skips[level]]), width << level)
    x = layers.Activation("silu")(layers.GroupNormalization(groups, epsilon=1e-5)(x))
    out = layers.Conv2D(3, 3, padding="same", dtype="float32")(x)
    return keras.Model([image, time], out), [(batch, side, side, 3), (batch, 8)]


CASES = (
    Case("transformer", transformer, ({"layer_norm": 3}, {"layer_norm": 9})),
    Case("convnext", convnext, ({"layer_norm": 5}, {"layer_norm": 10}), rates=(0.002, 0.0005)),
    Case("unet3d", unet3d, ({"instance_norm": 6}, {"instance_norm": 10})),
    Case("diffusion_unet", diffusion_unet, ({"group_norm": 7}, {"group_norm": 15})),
)
