"""Further keras-hub backbones, all of the long tail. The counts are literals, counted by hand."""

from __future__ import annotations

from ..line import Input
from .models import BERT, QUERIES, TEXT, TEXT_TO_TEXT, TOKENS, backbone, model, small

LINES = [
    # After the embeddings and two in each of two layers: Vaswani et al. 2017, norms after.
    backbone("albert", "AlbertBackbone", {"layer_norm": 5}, BERT, num_heads=2, embedding_dim=8),
    backbone("distil_bert", "DistilBertBackbone", {"layer_norm": 5}, num_heads=2),
    backbone("roberta", "RobertaBackbone", {"layer_norm": 5}, num_heads=2),
    backbone(
        "f_net",
        "FNetBackbone",
        {"layer_norm": 5},
        {"token_ids": TOKENS, "segment_ids": Input((2, 6), below=2)},
    ),
    # Encoder: the embeddings' and 2 in each of 2 layers; decoder: the embeddings' and 3 in each.
    backbone("bart", "BartBackbone", {"layer_norm": 12}, TEXT_TO_TEXT, num_heads=2),
    # The embeddings', the relative embeddings', and 2 in each of 2 layers.
    backbone("deberta_v3", "DebertaV3Backbone", {"layer_norm": 6}, num_heads=2, bucket_size=4),
    # The embeddings', 2 in each of 2 layers, the last.
    backbone("bloom", "BloomBackbone", {"layer_norm": 6}, num_heads=2),
    # 2 in each of 2 layers, the last.
    backbone("gpt_neo_x", "GPTNeoXBackbone", {"layer_norm": 5}, num_heads=2, rotary_percentage=0.5),
    backbone("opt", "OPTBackbone", {"layer_norm": 5}, num_heads=2),
    backbone("phi3", "Phi3Backbone", {"rms_norm": 5}, **QUERIES),
    backbone("mixtral", "MixtralBackbone", {"rms_norm": 5}, num_experts=2, **QUERIES),
    backbone("qwen", "QwenBackbone", {"rms_norm": 5}, **QUERIES),
    backbone("gpt_oss", "GptOssBackbone", {"rms_norm": 5}, num_experts=2, **QUERIES),
    backbone("llama3", "Llama3Backbone", {"rms_norm": 5}, **QUERIES),
    backbone(
        "qwen_moe",
        "QwenMoeBackbone",
        {"rms_norm": 5},
        moe_intermediate_dim=8,
        shared_expert_intermediate_dim=8,
        num_experts=2,
        top_k=1,
        **QUERIES,
    ),
    # As Llama, and one on the query and one on the key of each layer.
    backbone(
        "qwen3_moe",
        "Qwen3MoeBackbone",
        {"rms_norm": 9},
        head_dim=4,
        moe_intermediate_dim=8,
        num_experts=2,
        top_k=1,
        **QUERIES,
    ),
    # Before and after attention and feed-forward, query, key and value in each layer; the last.
    backbone(
        "gemma4",
        "Gemma4Backbone",
        {"rms_norm": 15},
        TEXT | {"position_ids": TOKENS},
        image_size=8,
        head_dim=4,
        **QUERIES,
    ),
    # The embeddings' and 2 in each of 2 layers.
    model(
        "electra",
        lambda hub: hub.models.ElectraBackbone(
            vocab_size=50,
            num_layers=2,
            num_heads=2,
            hidden_dim=8,
            embedding_dim=8,
            intermediate_dim=16,
        ),
        {"layer_norm": 5},
        BERT,
    ),
    backbone("xlm_roberta", "XLMRobertaBackbone", {"layer_norm": 5}, num_heads=2),
    model(
        "esm",  # 2 in each of 2 layers, the last
        lambda hub: hub.models.ESMBackbone(**small(num_heads=2)),
        {"layer_norm": 5},
        {"token_ids": TOKENS},
        slow_policies=("float32",),  # it fails under other policies
    ),
    backbone("falcon", "FalconBackbone", {"layer_norm": 5}, num_attention_heads=2),
    # After attention and after feed-forward in each of 2 layers.
    backbone("xlnet", "XLNetBackbone", {"layer_norm": 4}, BERT, num_heads=2),
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
    model(
        "rwkv7",  # the embeddings', 2 and one of the heads in each of 2 layers, the last
        lambda hub: hub.models.RWKV7Backbone(
            vocabulary_size=50, num_layers=2, hidden_size=8, head_size=4, intermediate_dim=16
        ),
        {"layer_norm": 6, "group_norm": 2},
        {
            "token_ids": Input((2, 16), below=50),
            "padding_mask": Input((2, 16), below=2),
        },
    ),
]
