"""Further keras-hub backbones, all of the long tail. The counts are literals, counted by hand."""

from __future__ import annotations

from ..line import Input
from .models import BERT, TEXT, TEXT_TO_TEXT, TOKENS, model, small


def _plain(name, cls, expect, inputs=TEXT, **options):
    """A backbone of two layers with the usual arguments."""
    return model(
        name,
        lambda hub: getattr(hub.models, cls)(**small(**options)),
        expect,
        inputs,
    )


_HEADS = {"num_query_heads": 2, "num_key_value_heads": 2}

LINES = [
    # After the embeddings and two in each of two layers: Vaswani et al. 2017, norms after.
    _plain("albert", "AlbertBackbone", {"layer_norm": 5}, BERT, num_heads=2, embedding_dim=8),
    _plain("distil_bert", "DistilBertBackbone", {"layer_norm": 5}, num_heads=2),
    _plain("roberta", "RobertaBackbone", {"layer_norm": 5}, num_heads=2),
    _plain(
        "f_net",
        "FNetBackbone",
        {"layer_norm": 5},
        {"token_ids": TOKENS, "segment_ids": Input((2, 6), below=2)},
    ),
    # Encoder: the embeddings' and 2 in each of 2 layers; decoder: the embeddings' and 3 in each.
    _plain("bart", "BartBackbone", {"layer_norm": 12}, TEXT_TO_TEXT, num_heads=2),
    # The embeddings', the relative embeddings', and 2 in each of 2 layers.
    _plain("deberta_v3", "DebertaV3Backbone", {"layer_norm": 6}, num_heads=2, bucket_size=4),
    # The embeddings', 2 in each of 2 layers, the last.
    _plain("bloom", "BloomBackbone", {"layer_norm": 6}, num_heads=2),
    # 2 in each of 2 layers, the last.
    _plain("gpt_neo_x", "GPTNeoXBackbone", {"layer_norm": 5}, num_heads=2, rotary_percentage=0.5),
    _plain("opt", "OPTBackbone", {"layer_norm": 5}, num_heads=2),
    _plain("phi3", "Phi3Backbone", {"rms_norm": 5}, **_HEADS),
    _plain("mixtral", "MixtralBackbone", {"rms_norm": 5}, num_experts=2, **_HEADS),
    _plain("qwen", "QwenBackbone", {"rms_norm": 5}, **_HEADS),
    _plain("gpt_oss", "GptOssBackbone", {"rms_norm": 5}, num_experts=2, **_HEADS),
    model(
        "roformer_v2",  # the embeddings', 2 in each of 2 layers
        lambda hub: hub.models.RoformerV2Backbone(**small(num_heads=2, head_size=4)),
        {"rms_norm": 5},
        {"token_ids": TOKENS, "segment_ids": Input((2, 6), below=2)},
        slow_policies=("float32",),  # it fails under other policies
    ),
    model(
        "deit",  # 2 in each of 2 layers, the last
        lambda hub: hub.models.DeiTBackbone(
            image_shape=(8, 8, 3),
            patch_size=(4, 4),
            num_layers=2,
            num_heads=2,
            hidden_dim=8,
            intermediate_dim=16,
        ),
        {"layer_norm": 5},
        {"": Input((2, 8, 8, 3))},
    ),
    model(
        "dinov2",  # 2 in each of 2 layers, the last
        lambda hub: hub.models.DINOV2Backbone(
            patch_size=4,
            num_layers=2,
            hidden_dim=8,
            num_heads=2,
            intermediate_dim=16,
            image_shape=(8, 8, 3),
            position_embedding_shape=(8, 8, 3),
        ),
        {"layer_norm": 5},
        {"images": Input((2, 8, 8, 3))},
    ),
]
