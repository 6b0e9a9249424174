"""The norm classes that keras-hub's models bring along."""

from __future__ import annotations

import importlib

import numpy as np

from ..line import BATCH, CHANNELS, STATIC, Input, Line

_MORE = (
    ("mixed_float16", STATIC, "infer"),
    ("mixed_bfloat16", BATCH, "infer"),
    ("float32", CHANNELS, "infer"),
    ("float32", BATCH, "train"),
)


def _rms(name, one_plus):
    """Zhang and Sennrich 2019: x / sqrt(mean(x^2) + epsilon) * scale."""

    def formula(parameters, x):
        scale = (1 if one_plus else 0) + parameters.get(name, 1 - one_plus)
        return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + 1e-6) * scale

    return formula


def rms(
    name,
    module,
    cls,
    *,
    weight="scale",
    one_plus=False,
    more=(),
    outputs=None,
    epsilon=1e-6,
    **options,
):
    def make(builder):
        constructor = getattr(importlib.import_module(f"keras_hub.src.{module}"), cls)
        return builder.layer(constructor, **options)

    return Line(
        f"hub.{name}",
        make,
        {"rms_norm": 1},
        (Input((3, 5, 8)),),
        epsilon=epsilon,
        axes=(-1,),
        formula=_rms(weight, one_plus),
        more=more,
        slow_policies=("float32", "mixed_float16", "mixed_bfloat16", "bfloat16"),
        slow_modes=("infer", "train"),
        outputs=outputs,
        needs="keras_hub",
    )


def _flux(builder):
    """Flux' layer takes no dtype: it is made under the global policy."""
    from keras_hub.src.layers.modeling.rms_normalization import RMSNormalization

    return builder.model(lambda: RMSNormalization(8))


LINES = [
    rms("llama", "models.llama.llama_layernorm", "LlamaLayerNorm", more=_MORE),
    rms("mistral", "models.mistral.mistral_layer_norm", "MistralLayerNormalization"),
    rms("mixtral", "models.mixtral.mixtral_layer_norm", "MixtralLayerNormalization"),
    rms("qwen", "models.qwen.qwen_layernorm", "QwenLayerNorm"),
    rms("qwen_moe", "models.qwen_moe.qwen_moe_layernorm", "QwenMoeLayerNorm"),
    rms("qwen3", "models.qwen3.qwen3_layernorm", "Qwen3LayerNorm"),
    rms("qwen3_moe", "models.qwen3_moe.qwen3_moe_layernorm", "Qwen3MoeLayerNorm"),
    rms("qwen3_5", "models.qwen3_5.qwen3_5_layers", "Qwen3_5LayerNorm", one_plus=True, more=_MORE),
    rms("qwen3_5_gated", "models.qwen3_5.qwen3_5_layers", "Qwen3_5RMSNormGated"),
    rms("phi3", "models.phi3.phi3_layernorm", "Phi3LayerNorm"),
    rms("gpt_oss", "models.gpt_oss.gpt_oss_layer_norm", "GptOssLayerNormalization"),
    rms("gemma", "models.gemma.rms_normalization", "RMSNormalization", one_plus=True, more=_MORE),
    rms("gemma3", "models.gemma3.gemma3_layers", "RMSNormalization", one_plus=True),
    rms("gemma3n", "models.gemma3n.rms_normalization", "Gemma3nRMSNorm", dim=8, more=_MORE),
    rms(
        "gemma3n.plain",
        "models.gemma3n.rms_normalization",
        "Gemma3nRMSNorm",
        dim=8,
        with_scale=False,
        weight="none",
    ),
    rms("gemma4", "models.gemma4.gemma4_layers", "RMSNormalization", more=_MORE),
    rms("gemma4_v", "models.gemma4.gemma4_layers", "Gemma4VNorm", weight="none"),
    rms(
        "gemma4_frozen",
        "models.gemma4.gemma4_layers",
        "Gemma4FrozenNorm",
        outputs={"train": [1]},  # gamma is not trained
    ),
    rms("t5", "models.t5.t5_layer_norm", "T5LayerNorm", weight="weight", more=_MORE),
    rms("roformer", "models.roformer_v2.roformer_v2_attention", "RoformerNorm"),
    rms("edrec", "models.edrec.edrec_layers", "EdRecRMSNormalization", one_plus=True, more=_MORE),
    Line(
        "hub.flux",
        _flux,
        {"rms_norm": 1},
        (Input((3, 5, 8)),),
        epsilon=1e-6,
        axes=(-1,),
        formula=_rms("scale", False),
        slow_policies=("float32",),
        needs="keras_hub",
    ),
    Line(
        "hub.mobilenetv5",
        lambda builder: builder.layer(
            importlib.import_module(
                "keras_hub.src.models.mobilenetv5.mobilenetv5_layers"
            ).RmsNorm2d,
            dim=6,
            data_format="channels_first",
        ),
        {"rms_norm": 1},
        (Input((2, 6, 3, 5), channels=(1,)),),
        epsilon=1e-6,
        slow_policies=("float32", "mixed_float16"),
        needs="keras_hub",
    ),
]
