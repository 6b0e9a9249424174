"""Whole models with random weights and tiny sizes. The counts are literals, counted by hand."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from ..line import BATCH, STATIC, Input, Line

TOKENS = Input((2, 6), below=50)
_MASK = Input((2, 6), below=2)
_POLICIES = ("float32", "mixed_float16")


def model(
    name, make: Callable, expect, inputs: dict[str, Input], *, pick=None, slow=True, **fields
):
    """make(keras_hub) returns a model that takes a dict of the inputs, or one input named ""."""

    def build(builder):
        import keras_hub

        network = builder.model(lambda: make(keras_hub))
        names = list(inputs)

        def function(*args):
            given = dict(zip(names, args, strict=True)) if names[0] else args[0]
            outputs = network(given, training=False)
            return outputs if pick is None else pick(outputs)

        return function

    return Line(
        f"model.{name}",
        build,
        expect,
        tuple(inputs.values()),
        slow=slow,
        slow_modes=("infer", "train"),
        needs="keras_hub",
        **({"slow_policies": _POLICIES, "slow_knowledge": (STATIC, BATCH)} | fields),
    )


BERT = {
    "token_ids": TOKENS,
    "segment_ids": Input((2, 6), below=2),
    "padding_mask": _MASK,
}
TEXT = {"token_ids": TOKENS, "padding_mask": _MASK}
TEXT_TO_TEXT = {
    "encoder_token_ids": TOKENS,
    "encoder_padding_mask": _MASK,
    "decoder_token_ids": TOKENS,
    "decoder_padding_mask": _MASK,
}


def small(**options):
    return {
        "vocabulary_size": 50,
        "num_layers": 2,
        "hidden_dim": 8,
        "intermediate_dim": 16,
    } | options


def backbone(name, cls, expect, inputs=TEXT, *, slow=True, **options):
    """A backbone of keras-hub with the usual arguments, of two layers where not said."""
    return model(
        name, lambda hub: getattr(hub.models, cls)(**small(**options)), expect, inputs, slow=slow
    )


POSITIONS = {"num_heads": 2, "max_sequence_length": 8}
QUERIES = {"num_query_heads": 2, "num_key_value_heads": 2}


def mmdit(name, expect, fields=None, **options):
    """The transformer of Stable Diffusion 3; `fields` of the line."""
    module = "keras_hub.src.models.stable_diffusion_3.mmdit"
    return model(
        name,
        lambda hub: importlib.import_module(module).MMDiT(
            patch_size=2,
            hidden_dim=8,
            num_heads=2,
            position_size=4,
            latent_shape=(4, 4, 4),
            context_shape=(None, 6),
            pooled_projection_shape=(5,),
            qk_norm="rms_norm",
            **options,
        ),
        expect,
        {
            "latent": Input((2, 4, 4, 4)),
            "context": Input((2, 3, 6)),
            "pooled_projection": Input((2, 5)),
            "timestep": Input((2, 1)),
        },
        **(fields or {}),
    )


def _convnext(builder):
    import keras

    network = builder.model(
        lambda: keras.applications.ConvNeXtTiny(
            weights=None, include_top=False, input_shape=(64, 64, 3)
        )
    )
    return lambda x: network(x, training=False)


LINES = [
    # After the embeddings, and two in each of two layers.
    backbone("bert", "BertBackbone", {"layer_norm": 5}, BERT, slow=False, **POSITIONS),
    # Two in each of two layers, and the last one.
    backbone("gpt2", "GPT2Backbone", {"layer_norm": 5}, **POSITIONS),
    model(
        "vit",  # two in each of two layers, and the last one
        lambda hub: hub.models.ViTBackbone(
            image_shape=(8, 8, 3),
            patch_size=(4, 4),
            num_layers=2,
            num_heads=2,
            hidden_dim=8,
            mlp_dim=16,
        ),
        {"layer_norm": 5},
        {"images": Input((2, 8, 8, 3))},
    ),
    model(
        "swin",  # patches, 2 in each of 2 + 2 layers, patch merging, last
        lambda hub: hub.models.SwinTransformerBackbone(
            image_shape=(64, 64, 3),
            embed_dim=8,
            depths=(2, 2),
            num_heads=(2, 2),
            window_size=4,
        ),
        {"layer_norm": 11},
        {"": Input((1, 64, 64, 3))},
    ),
    model(
        "whisper",  # encoder: 2 in its layer and the last; decoder: 3 in its layer and the last
        lambda hub: hub.models.WhisperBackbone(
            **small(num_layers=1, num_heads=2, num_mels=8),
            max_encoder_sequence_length=12,
            max_decoder_sequence_length=8,
        ),
        {"layer_norm": 7},
        {
            "encoder_features": Input((2, 12, 8)),
            "decoder_token_ids": TOKENS,
            "decoder_padding_mask": _MASK,
        },
    ),
    # Two in each of two layers, and the last one.
    backbone("llama", "LlamaBackbone", {"rms_norm": 5}, slow=False, **QUERIES),
    backbone("mistral", "MistralBackbone", {"rms_norm": 5}, **QUERIES),
    # As Llama, and one on the query and one on the key of each layer.
    backbone("qwen3", "Qwen3Backbone", {"rms_norm": 9}, head_dim=4, **QUERIES),
    # As Llama.
    backbone(
        "gemma",
        "GemmaBackbone",
        {"rms_norm": 5},
        num_query_heads=2,
        num_key_value_heads=1,
        head_dim=4,
    ),
    model(
        "gemma3",  # six in each of two layers (query, key, two after), and the last one
        lambda hub: hub.models.Gemma3Backbone(
            **small(num_query_heads=2, num_key_value_heads=1, head_dim=4),
            image_size=8,
            use_post_ffw_norm=True,
            use_post_attention_norm=True,
        ),
        {"rms_norm": 13},
        TEXT,
    ),
    # Encoder: 2 in each of 2 layers and the last; decoder: 3 in each of 2 and the last.
    backbone("t5", "T5Backbone", {"rms_norm": 12}, TEXT_TO_TEXT, num_heads=2),
    model(
        # Encoder: 2 in each of 4 blocks, 2 + 1 + 2 in the middle, 1 at the end; decoder: the same.
        "sd3_vae",
        lambda hub: importlib.import_module("keras_hub.src.models.vae.vae_backbone").VAEBackbone(
            encoder_num_filters=[64, 64, 64, 64],
            encoder_num_blocks=[1, 1, 1, 1],
            decoder_num_filters=[64, 64, 64, 64],
            decoder_num_blocks=[1, 1, 1, 1],
            sampler_method="mode",
        ),
        {"group_norm": 28},
        {"": Input((1, 16, 16, 3))},
    ),
    # Image: 2 in each of 2 blocks; text: 2 in the first block, 1 in the last; the output's; on
    # query and key of image and text in each block.
    mmdit("sd3_mmdit", {"layer_norm": 8, "rms_norm": 8}, num_layers=2),
    Line(
        "model.convnext",  # stem, 3 + 3 + 9 + 3 blocks, 3 downsamplings, last
        _convnext,
        {"layer_norm": 23},
        # Not 32 x 32: in the last stage images were 1 x 1, and behind a Dense of unknown batch
        # nobody knows that a gradient of that size is not yet to be broadcast.
        (Input((2, 64, 64, 3)),),
        slow=True,
        slow_policies=("float32", "mixed_float16"),
        slow_knowledge=(STATIC, BATCH),
        slow_modes=("infer", "train"),
    ),
]
