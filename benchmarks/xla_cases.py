"""The single normalizations that xla_layers.py measures: which layer, of what, beside what."""

from __future__ import annotations

import dataclasses
import math

ROWS = [(10**n, 10 ** (8 - n)) for n in range(1, 8)]
VOLUMES = [(2, 128, 128, 128, 32), (4, 64, 64, 64, 64), (8, 64, 64, 64, 128), (8, 32, 32, 32, 256)]
UNET = [(2, 96, 96, 96, 32), (2, 48, 48, 48, 64), (2, 24, 24, 24, 128), (2, 12, 12, 12, 256)]
# BERT-base 32 x 512; ConvNeXtTiny's first and last stage at 64 images; a wide decoder.
MODELS = [(16384, 768), (200704, 96), (3136, 768), (8192, 4096)]
# What small batches have: a transformer's 1024 tokens, a vision transformer's, a diffusion model's
# two images, one image of a generator's.
SMALL_ROWS = [(1024, 768), (4096, 384), (256, 1024)]
SMALL_IMAGES = [(2, 64, 64, 128), (2, 32, 32, 256), (2, 16, 16, 512)]
SMALL_SAMPLES = [*UNET[2:], (1, 128, 128, 64), (1, 64, 64, 256)]
# Queries and keys of transformers that normalize them, as Qwen3 does, and turn them by position.
HEADS = [(131072, 128), (32768, 128), (32768, 256)]
# Swin's first two stages, and rows as BERT's.
WINDOWS = [(200704, 96), (50176, 192), (16384, 768)]
# fmt: off
WHAT = (
    "seeds", "groups", "neighbours", "kinds", "activations", "volumes", "colours", "sums", "small",
    "heads", "moves", "skips",
)
# fmt: on
# Images of three colours, as benchmark_keras_layers.py has them.
COLOURS = (128, 224, 224, 3)
# ResNet-like and diffusion models with 32 groups.
IMAGES = [(32, 56, 56, 256), (8, 64, 64, 320), (4, 128, 128, 128)]
IMAGES += [(16, 64, 64, 128), (16, 32, 32, 256), (16, 16, 16, 512), (16, 8, 8, 512)]
LARGE_IMAGES = (64, 56, 56, 256)  # no cache holds x and y in 16 bits


@dataclasses.dataclass(frozen=True)
class Case:
    """A layer and what is around it.

    kind: "layer", "rms", "instance" or "group 32", the last two with " first" for channels first.
    neighbours: of "", "residual", "activation" (gelu), "both"; "activation inside" and "both
      inside" if the fused op is to compute the activation, too, a leaky_relu after an instance or
      group norm; "silu inside" and "both silu inside" if that is silu; "sum" and "both sum" if
      another tensor is added to y; "parts" and "moved" if y is read in halves, or in another order;
      "squeezed" if the means of its channels are multiplied with it; "skip" if x is a sum that goes
      on beside the norm.
    """

    kind: str
    shape: tuple[int, ...]
    dtype: str
    backward: bool
    neighbours: str = ""
    links: int = 1


def cases(what: str, quick: bool) -> list[Case]:
    """quick: the same with tensors that a CPU manages, to see that it runs."""
    types = ("float32", "bfloat16")
    found = []
    for backward in (True, False):
        if what == "seeds":
            found += [Case("layer", s, t, backward) for t in types for s in ROWS]
        if what == "groups":
            found += [Case("instance", s, t, backward) for t in types for s in VOLUMES]
        if what == "neighbours":
            for near in ("", "residual", "activation", "both"):
                found += [Case("layer", s, "bfloat16", backward, near) for s in MODELS]
                found += [Case("layer", s, "float32", backward, near) for s in MODELS[:2]]
            for near in ("", "residual"):
                found += [Case("instance", s, "bfloat16", backward, near) for s in UNET]
                found += [Case("instance", s, "float32", backward, near) for s in UNET[:1]]
            for near in ("residual", "both"):
                found += by_group(backward, near)
        if what == "kinds":
            for near in ("", "residual"):
                found += [Case("rms", s, t, backward, near) for t in types for s in MODELS[::3]]
            found += by_group(backward, "")
            found += [Case("layer", (65536, 250), t, backward) for t in types]
        if what == "activations":
            for near in ("activation inside", "activation"):
                found += [Case("instance", s, "bfloat16", backward, near) for s in UNET]
                found += [Case("instance", UNET[0], "float32", backward, near)]
                found += by_group(backward, near)
            found += [Case("instance", s, "bfloat16", backward, "both inside") for s in UNET[:2]]
            for near in ("both inside", "both silu inside"):
                shapes = (*IMAGES[:2], LARGE_IMAGES)
                found += [Case("group 32", s, "bfloat16", backward, near) for s in shapes]
            found += by_group(backward, "silu inside")
        if what == "volumes":  # as XLA has them beside 3-D convolutions
            for near in ("", "residual", "activation inside", "activation", "both inside"):
                for dtype in types:
                    found += [Case("instance first", first(s), dtype, backward, near) for s in UNET]
                found += [Case("group 32 first", first(UNET[2]), "bfloat16", backward, near)]
        if what == "colours":  # rows, or runs of channels, that are no whole vectors
            for near in ("", "residual", "activation", "both"):
                for dtype in types:
                    found.append(Case("layer", (math.prod(COLOURS[:-1]), 3), dtype, backward, near))
                    found.append(Case("instance", COLOURS, dtype, backward, near))
        if what == "sums":  # at the end of a ResNet's block, or of a block of a transformer
            for near in ("sum", "both sum"):
                found += [Case("layer", s, "bfloat16", backward, near) for s in MODELS]
                found += [Case("layer", s, "float32", backward, near) for s in MODELS[:2]]
                found += [Case("rms", s, t, backward, near) for t in types for s in MODELS[::3]]
                found += [Case("instance", s, "bfloat16", backward, near) for s in UNET]
                found += [Case("instance", s, "float32", backward, near) for s in UNET[:1]]
                found += by_group(backward, near)
        if what == "small":
            for near in ("", "residual", "activation", "sum"):
                found += [Case("layer", s, t, backward, near) for t in types for s in SMALL_ROWS]
                found.append(Case("layer", MODELS[2], "bfloat16", backward, near))
            for near in ("", "residual"):
                found += [Case("rms", s, t, backward, near) for t in types for s in SMALL_ROWS[:2]]
            for near in ("", "residual", "activation inside", "silu inside"):
                shapes = (*SMALL_IMAGES, *IMAGES[-3:])
                found += [Case("group 32", s, "bfloat16", backward, near) for s in shapes]
            for near in ("", "silu inside"):
                shapes = (*SMALL_IMAGES[:2], *IMAGES[-2:])
                found += [Case("group 32", s, "float32", backward, near) for s in shapes]
            for near in ("", "activation inside"):
                for dtype in types:
                    found += [Case("instance", s, dtype, backward, near) for s in SMALL_SAMPLES]
        if what == "heads":
            for dtype in types:
                shapes = (*HEADS, *MODELS[::3], SMALL_ROWS[1])
                found.append(Case("rms", HEADS[0], dtype, backward))
                found.append(Case("layer", HEADS[0], dtype, backward, "parts"))
                found += [Case("rms", s, dtype, backward, "parts") for s in shapes]
        if what == "moves":
            for dtype in types:
                found += [Case("layer", s, dtype, backward, "moved") for s in WINDOWS]
                found.append(Case("rms", MODELS[0], dtype, backward, "moved"))
            squeezed = (*IMAGES[:2], *IMAGES[4:6])
            found += [Case("group 32", s, "bfloat16", backward, "squeezed") for s in squeezed]
            found.append(Case("group 32", IMAGES[0], "float32", backward, "squeezed"))
        if what == "skips":
            for dtype in types:
                shapes = (*MODELS, *SMALL_ROWS)
                found += [
                    Case(k, s, dtype, backward, "skip") for k in ("layer", "rms") for s in shapes
                ]
    if quick:
        found = [dataclasses.replace(c, shape=tiny(c)) for c in found]
    return [dataclasses.replace(c, links=links(c)) for c in found]


def by_group(backward: bool, near: str) -> list[Case]:
    found = [Case("group 32", s, "bfloat16", backward, near) for s in (*IMAGES, LARGE_IMAGES)]
    found += [Case("group 32", s, "float32", backward, near) for s in IMAGES[::3]]
    return [*found, Case("group 32 first", first(IMAGES[0]), "bfloat16", backward, near)]


def first(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape with its last axis, the channels, second."""
    return (shape[0], shape[-1], *shape[1:-1])


def tiny(case: Case) -> tuple[int, ...]:
    channels = 1 if case.kind.endswith("first") else len(case.shape) - 1
    grouped = case.kind.startswith("group")
    rows = 512 if case.neighbours == "moved" else 6
    sizes = [min(n, rows if i == 0 else 6) for i, n in enumerate(case.shape)]
    return tuple(64 if grouped and i == channels else n for i, n in enumerate(sizes))


def links(case: Case) -> int:
    """Enough for the GPU to be busier than the host, but not too long to compile."""
    elements = math.prod(case.shape)
    return max(2, min(8 if elements > 5_000_000 else 32, 200_000_000 // elements))
