"""Whole models with random weights, and a random batch for each; nothing is downloaded."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

SEED = 7


NORMS = (
    keras.layers.BatchNormalization,
    keras.layers.GroupNormalization,
    keras.layers.LayerNormalization,
    keras.layers.RMSNormalization,
)


class AdaptiveInstanceNorm(keras.layers.Layer):
    """AdaIN (Huang and Belongie, 2017): scaled and shifted by a style, each sample its own way."""

    def build(self, x_shape: tuple[int | None, ...], style_shape: tuple[int | None, ...]) -> None:
        self.of_style = keras.layers.Dense(2 * x_shape[-1], bias_initializer="ones")
        self.of_style.build(style_shape)

    def call(self, x: tf.Tensor, style: tf.Tensor) -> tf.Tensor:
        mean, variance = tf.nn.moments(x, [1, 2], keepdims=True)
        scale, shift = tf.split(self.of_style(style)[:, None, None, :], 2, axis=-1)
        return tf.nn.batch_normalization(x, mean, variance, shift, scale, 1e-5)

    def compute_output_shape(self, x_shape: Any, style_shape: Any) -> Any:
        return x_shape


class Task(NamedTuple):
    """A model, its input, what it is to learn, and how many norms one counts in its layers."""

    model: keras.Model
    x: Any
    target: np.ndarray
    norms: int


def _norms(model: keras.Model) -> int:
    """How many norms it has, those inside of its layers and keras-hub's own ones, too."""
    return sum(
        isinstance(layer, (*NORMS, AdaptiveInstanceNorm))
        or type(layer).__name__.endswith("LayerNorm")
        for layer in model._flatten_layers()
    )


def _task(model: keras.Model, x: Any, random: np.random.Generator, batch: int) -> Task:
    norms = _norms(model)
    shape = (batch, *model.output.shape[1:])
    return Task(model, x, random.normal(size=shape).astype(np.float32), norms)


class Unnormalized(keras.layers.Layer):
    """Gives back its input, but has the gamma and beta of a norm's channels.

    Their gradients are zeros, so that an optimizer has as much to do as with the norm's.
    """

    def __init__(self, norm: keras.layers.Layer) -> None:
        super().__init__()
        self._names = [("scale", "gamma", "ones"), ("center", "beta", "zeros")]
        self._names = [names for names in self._names if getattr(norm, names[0], True) is not False]

    def build(self, shape: tuple[int | None, ...]) -> None:
        self.params = [
            self.add_weight(shape=shape[-1:], initializer=initializer, name=name)
            for _, name, initializer in self._names
        ]

    def call(self, x: tf.Tensor) -> tf.Tensor:
        @tf.custom_gradient
        def same(x: tf.Tensor, *params: tf.Tensor) -> Any:
            return tf.identity(x), lambda dy: (dy, *map(tf.zeros_like, params))

        return same(x, *map(tf.convert_to_tensor, self.params))


def with_norm(
    model: keras.Model, norm: Callable[[keras.layers.Layer], keras.layers.Layer]
) -> keras.Model:
    """The same model with another layer in the place of each norm."""

    def copy(layer: keras.layers.Layer) -> keras.layers.Layer:
        if isinstance(layer, keras.Sequential):
            return keras.Sequential([copy(inner) for inner in layer.layers])
        return (
            norm(layer) if isinstance(layer, NORMS) else type(layer).from_config(layer.get_config())
        )

    def call(layer: keras.layers.Layer, *inputs: Any, mask: Any = None, **options: Any) -> Any:
        # Batch norms and nested models have this argument, others do not.
        assert all(part is None for part in tf.nest.flatten(mask))
        return layer(*inputs, **options)

    return keras.models.clone_model(model, clone_function=copy, call_function=call)


def without_norms(task: Task) -> Task | None:
    """The same with its norms, not their parameters, taken out; None if one of them stays."""
    model = with_norm(task.model, Unnormalized)
    if _norms(model):
        return None
    return task._replace(model=model, norms=0)


def bert(small: bool) -> Task:
    """BertBackbone base, 32 sequences of 512 tokens."""
    import keras_hub

    layers, width, batch, length = (2, 64, 2, 16) if small else (12, 768, 32, 512)
    vocabulary = 1000 if small else 30522
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=vocabulary,
        num_layers=layers,
        num_heads=width // 64,
        hidden_dim=width,
        intermediate_dim=4 * width,
        max_sequence_length=length,
    )
    random = np.random.default_rng(SEED)
    tokens = random.integers(0, vocabulary, (batch, length)).astype(np.int32)
    x = {
        "token_ids": tokens,
        "segment_ids": np.zeros_like(tokens),
        "padding_mask": np.ones_like(tokens),
    }
    y = keras.layers.Dense(1, dtype="float32")(backbone.output["pooled_output"])
    return _task(keras.Model(backbone.input, y), x, random, batch)


def decoder(
    small: bool, backbone: str, layers: int, width: int, batch: int, **options: int
) -> Task:
    """A decoder of keras-hub with RMS norms, sequences of 1024 tokens."""
    import keras_hub

    layers, width, batch, length = (2, 64, 2, 16) if small else (layers, width, batch, 1024)
    vocabulary = 1000 if small else 32000
    model = getattr(keras_hub.models, backbone)(
        vocabulary_size=vocabulary,
        num_layers=layers,
        num_query_heads=width // 64,
        num_key_value_heads=max(1, width // 256),
        hidden_dim=width,
        intermediate_dim=4 * width,
        **options,
    )
    random = np.random.default_rng(SEED)
    tokens = random.integers(0, vocabulary, (batch, length)).astype(np.int32)
    x = {"token_ids": tokens, "padding_mask": np.ones_like(tokens)}
    inputs = {of: keras.Input((length,), dtype="int32") for of in x}
    y = keras.layers.Dense(1, dtype="float32")(model(inputs))
    return _task(keras.Model(inputs, y), x, random, batch)


def llama(small: bool) -> Task:
    """Eight layers of LlamaBackbone, as wide as Llama 3.2 1B, 4 sequences."""
    return decoder(small, "LlamaBackbone", layers=8, width=2048, batch=4)


def qwen3(small: bool) -> Task:
    """Fourteen layers of Qwen3Backbone, as wide as Qwen3 0.6B, which normalizes queries and keys,
    too; 8 sequences."""
    return decoder(small, "Qwen3Backbone", layers=14, width=1024, batch=8, head_dim=128)


def convnext(small: bool) -> Task:
    """ConvNeXtTiny, 64 images of 224 x 224."""
    batch, size = (2, 64) if small else (64, 224)
    model = keras.applications.ConvNeXtTiny(
        weights=None, input_shape=(size, size, 3), classes=10, classifier_activation=None
    )
    random = np.random.default_rng(SEED)
    x = random.normal(size=(batch, size, size, 3)).astype(np.float32)
    return _task(model, x, random, batch)


def unet3d(small: bool, edge: int = 96) -> Task:
    """A 3-D U-Net with instance norm, 2 volumes of 96^3."""
    size, width, batch = (16, 4, 2) if small else (edge, 32, 2)

    def block(x: keras.KerasTensor, channels: int) -> keras.KerasTensor:
        for _ in range(2):
            x = keras.layers.Conv3D(channels, 3, padding="same", use_bias=False)(x)
            x = keras.layers.GroupNormalization(groups=-1)(x)
            x = keras.layers.LeakyReLU(0.01)(x)
        return x

    x, skips = keras.Input((size, size, size, 1)), []
    volume = x
    for level in range(3):
        x = block(x, width << level)
        skips.append(x)
        x = keras.layers.Conv3D(width << (level + 1), 2, strides=2)(x)
    x = block(x, width << 3)
    for level in reversed(range(3)):
        x = keras.layers.Conv3DTranspose(width << level, 2, strides=2)(x)
        x = block(keras.layers.Concatenate()([x, skips[level]]), width << level)
    model = keras.Model(volume, keras.layers.Conv3D(1, 1, dtype="float32")(x))
    random = np.random.default_rng(SEED)
    x = random.normal(size=(batch, *volume.shape[1:])).astype(np.float32)
    return _task(model, x, random, batch)


def diffusion(small: bool, guided: bool = False) -> Task:
    """A denoising U-Net with group norms and a time embedding, 16 latents of 64 x 64 x 4.

    guided: as guided diffusion (Dhariwal and Nichol, 2021) has it, where the time embedding scales
    and shifts a group norm that has a gamma and a beta, in place of being added before it.
    """
    size, width, groups, batch = (16, 16, 4, 2) if small else (64, 128, 32, 16)

    def residual(x: keras.KerasTensor, t: keras.KerasTensor, channels: int) -> keras.KerasTensor:
        h = keras.layers.Activation("silu")(keras.layers.GroupNormalization(groups)(x))
        h = keras.layers.Conv2D(channels, 3, padding="same")(h)
        norm = keras.layers.GroupNormalization(groups)
        if guided:
            embedding = keras.layers.Reshape((1, 1, 2 * channels))(
                keras.layers.Dense(2 * channels)(t)
            )
            scale, shift = keras.ops.split(embedding, 2, axis=-1)
            h = norm(h) * (1.0 + scale) + shift
        else:
            h = norm(h + keras.layers.Reshape((1, 1, channels))(keras.layers.Dense(channels)(t)))
        h = keras.layers.Activation("silu")(h)
        h = keras.layers.Conv2D(channels, 3, padding="same")(h)
        return h + (x if x.shape[-1] == channels else keras.layers.Conv2D(channels, 1)(x))

    def attention(x: keras.KerasTensor) -> keras.KerasTensor:
        h = keras.layers.GroupNormalization(groups)(x)
        h = keras.layers.Reshape((-1, x.shape[-1]))(h)
        h = keras.layers.MultiHeadAttention(4, x.shape[-1] // 4)(h, h)
        return x + keras.layers.Reshape(x.shape[1:])(h)

    image, step = keras.Input((size, size, 4)), keras.Input((width,))
    t = keras.layers.Dense(4 * width, "silu")(step)
    x, skips = keras.layers.Conv2D(width, 3, padding="same")(image), []
    for level in range(3):
        x = residual(x, t, width << level)
        x = attention(x) if level == 2 else x
        skips.append(x)
        x = keras.layers.Conv2D(width << level, 3, strides=2, padding="same")(x)
    x = residual(attention(residual(x, t, width << 2)), t, width << 2)
    for level in reversed(range(3)):
        x = keras.layers.UpSampling2D()(x)
        x = keras.layers.Concatenate()([x, skips[level]])
        x = residual(x, t, width << level)
    x = keras.layers.Activation("silu")(keras.layers.GroupNormalization(groups)(x))
    model = keras.Model(
        [image, step], keras.layers.Conv2D(4, 3, padding="same", dtype="float32")(x)
    )
    random = np.random.default_rng(SEED)
    inputs = [
        random.normal(size=(batch, *shape)).astype(np.float32)
        for shape in ((size, size, 4), (width,))
    ]
    return _task(model, inputs, random, batch)


def generator(small: bool) -> Task:
    """Images of 64 x 64 out of a style, which scales and shifts instance norms; 32 of them."""
    levels, width, batch = (2, 16, 2) if small else (4, 128, 32)
    code = keras.Input((width,))
    style = keras.layers.Dense(width, "relu")(code)
    x = keras.layers.Reshape((4, 4, width))(keras.layers.Dense(16 * width)(code))
    for _ in range(levels):
        x = keras.layers.UpSampling2D()(x)
        for _ in range(2):
            x = keras.layers.Conv2D(width, 3, padding="same", use_bias=False)(x)
            x = keras.layers.LeakyReLU()(AdaptiveInstanceNorm()(x, style))
    model = keras.Model(code, keras.layers.Conv2D(3, 3, padding="same", dtype="float32")(x))
    random = np.random.default_rng(SEED)
    return _task(model, random.normal(size=(batch, width)).astype(np.float32), random, batch)


def dit(small: bool) -> Task:
    """A diffusion transformer (Peebles and Xie, 2022), DiT-B/2, 64 latents of 32 x 32 x 4, whose
    layer norms are scaled and shifted for each sample."""
    layers, width, batch, size = (2, 64, 2, 8) if small else (12, 768, 64, 32)

    def modulated(x: keras.KerasTensor, shift: Any, scale: Any) -> keras.KerasTensor:
        norm = keras.layers.LayerNormalization(center=False, scale=False, epsilon=1e-6)
        return norm(x) * (1.0 + scale) + shift

    image, step = keras.Input((size, size, 4)), keras.Input((width,))
    condition = keras.layers.Activation("silu")(keras.layers.Dense(width)(step))

    def of_samples(count: int) -> list[keras.KerasTensor]:
        h = keras.layers.Reshape((1, count * width))(keras.layers.Dense(count * width)(condition))
        return keras.ops.split(h, count, axis=-1)

    x = keras.layers.Conv2D(width, 2, strides=2)(image)
    x = keras.layers.Reshape((-1, width))(x)
    for _ in range(layers):
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = of_samples(6)
        h = modulated(x, shift, scale)
        x = x + gate * keras.layers.MultiHeadAttention(width // 64, 64)(h, h)
        h = keras.layers.Dense(4 * width, "gelu")(modulated(x, mlp_shift, mlp_scale))
        x = x + mlp_gate * keras.layers.Dense(width)(h)
    x = modulated(x, *of_samples(2))
    model = keras.Model([image, step], keras.layers.Dense(16, dtype="float32")(x))
    random = np.random.default_rng(SEED)
    inputs = [
        random.normal(size=(batch, *shape)).astype(np.float32)
        for shape in ((size, size, 4), (width,))
    ]
    return _task(model, inputs, random, batch)


def resnet(small: bool) -> Task:
    """ResNet50 with group norms instead of its batch norms, 64 images of 224 x 224."""
    batch, size = (2, 64) if small else (64, 224)
    model = keras.applications.ResNet50(
        weights=None, input_shape=(size, size, 3), classes=10, classifier_activation=None
    )
    random = np.random.default_rng(SEED)
    x = random.normal(size=(batch, size, size, 3)).astype(np.float32)
    return _task(with_norm(model, lambda _: keras.layers.GroupNormalization(32)), x, random, batch)


MODELS: dict[str, Callable[[bool], Task]] = {
    "bert": bert,
    "llama": llama,
    "qwen3": qwen3,
    "convnext": convnext,
    "unet3d": unet3d,
    "unet3d_128": functools.partial(unet3d, edge=128),
    "diffusion": diffusion,
    "guided": functools.partial(diffusion, guided=True),
    "generator": generator,
    "dit": dit,
    "resnet": resnet,
}
