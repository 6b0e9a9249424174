"""Further keras-hub backbones, all of the long tail. The counts are literals, counted by hand."""

from __future__ import annotations

from ..line import BATCH, STATIC, Input
from .models import BERT, QUERIES, TEXT, TEXT_TO_TEXT, TOKENS, backbone, mmdit, model, small

IMAGE = Input((2, 32, 32, 3))


def vision(**options):
    return {"num_layers": 2, "hidden_dim": 8, "num_heads": 2, "image_shape": (32, 32, 3)} | options


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
    model(
        # Patches, 2 in a block and the last in each of 2 stages; the reduced keys' in the first.
        "segformer",
        lambda hub: hub.models.SegFormerBackbone(
            hub.models.MiTBackbone(
                layerwise_depths=[1, 1],
                image_shape=(32, 32, 3),
                hidden_dims=[8, 16],
                num_layers=2,
                layerwise_num_heads=[1, 2],
                layerwise_sr_ratios=[2, 1],
                max_drop_path_rate=0.0,
                layerwise_patch_sizes=[7, 3],
                layerwise_strides=[4, 2],
            ),
            projection_filters=8,
        ),
        {"layer_norm": 9},
        {"": IMAGE},
    ),
    model(
        "dinov3",  # 2 in each of 2 layers, the last
        lambda hub: hub.models.DINOV3Backbone(
            **vision(patch_size=8), intermediate_dim=16, num_register_tokens=2
        ),
        {"layer_norm": 5},
        {"pixel_values": IMAGE},
    ),
    model(
        "siglip",  # 2 in each of 2 layers, the last, the pooling head's
        lambda hub: hub.models.SigLIPVisionEncoder(**vision(patch_size=8), intermediate_dim=16),
        {"layer_norm": 6},
        {"images": IMAGE},
    ),
    model(
        "clip",  # the first, 2 in each of 2 layers, the last
        lambda hub: hub.models.CLIPVisionEncoder(**vision(patch_size=8), intermediate_dim=16),
        {"layer_norm": 6},
        {"images": IMAGE},
    ),
    model(
        "vit_det",  # 2 in each of 2 layers, 2 in the neck
        lambda hub: hub.models.ViTDetBackbone(
            hidden_size=8,
            num_layers=2,
            intermediate_dim=16,
            num_heads=2,
            global_attention_layer_indices=[1],
            image_shape=(32, 32, 3),
            patch_size=8,
            window_size=2,
            num_output_channels=8,
        ),
        {"layer_norm": 6},
        {"": IMAGE},
    ),
    model(
        "video_prism",  # 2 in a layer and the last, in space and in time
        lambda hub: hub.models.VideoPrismBackbone(
            num_frames=2,
            patch_size=8,
            hidden_dim=8,
            intermediate_dim=16,
            num_heads=2,
            num_spatial_layers=1,
            num_temporal_layers=1,
            num_auxiliary_layers=0,
            image_shape=(16, 16, 3),
        ),
        {"layer_norm": 6},
        {"": Input((2, 2, 16, 16, 3))},
    ),
    model(
        # Image: 2 in its layer and the last; text: 4 in its layer (query's, content's, between
        # attentions, before the MLP), the last.
        "parseq",
        lambda hub: hub.models.PARSeqBackbone(
            hub.models.ViTBackbone(
                image_shape=(32, 32, 3),
                patch_size=(8, 8),
                num_layers=1,
                num_heads=2,
                hidden_dim=8,
                mlp_dim=16,
                use_class_token=False,
            ),
            vocabulary_size=50,
            max_label_length=6,
            decoder_hidden_dim=8,
            num_decoder_layers=1,
            num_decoder_heads=2,
            decoder_mlp_dim=2,
        ),
        {"layer_norm": 8},
        {"images": IMAGE} | TEXT,
    ),
    model(
        # Around attention and feed-forward in each of 2 + 2 layers, around the decoders' second
        # attention, the last of both.
        "t5gemma",
        lambda hub: hub.models.T5GemmaBackbone(
            vocabulary_size=50,
            **{
                f"{side}_{name}": value
                for side in ("encoder", "decoder")
                for name, value in {
                    "hidden_dim": 8,
                    "intermediate_dim": 16,
                    "num_layers": 2,
                    "num_attention_heads": 2,
                    "num_key_value_heads": 1,
                    "head_dim": 4,
                    "layer_types": ["full_attention", "sliding_attention"],
                }.items()
            },
            sliding_window=4,
            cross_attention_hidden_size=8,
            attn_logit_softcapping=50.0,
            final_logit_softcapping=30.0,
        ),
        {"rms_norm": 22},
        TEXT_TO_TEXT,
        slow_policies=("float32", "mixed_bfloat16"),  # float16 overflows with random weights
    ),
    model(
        # Before and after attention in each layer, the gated one of linear attention, query's and
        # key's of the other, the last.
        "qwen3_5",
        lambda hub: hub.models.Qwen3_5Backbone(
            **small(**QUERIES, head_dim=8),  # a quarter of it is rotated
            layer_types=["linear_attention", "full_attention"],
            linear_num_key_heads=2,
            linear_num_value_heads=2,
            linear_key_head_dim=4,
            linear_value_head_dim=4,
        ),
        {"rms_norm": 8},
        TEXT,
    ),
    model(
        # 2 of image and 2 of text in the double block, 1 in the single one, the last; query's and
        # key's of each.
        "flux",
        lambda hub: hub.models.FluxBackbone(
            input_channels=8,
            hidden_size=16,
            mlp_ratio=2.0,
            num_heads=2,
            depth=1,
            depth_single_blocks=1,
            axes_dim=[2, 2, 4],
            theta=100,
            use_bias=True,
            image_shape=(4, 8),
            text_shape=(3, 8),
            image_ids_shape=(4, 3),
            text_ids_shape=(3, 3),
            y_shape=(5,),
        ),
        {"layer_norm": 6, "rms_norm": 6},
        {
            "image": Input((2, 4, 8)),
            "image_ids": Input((2, 4, 3)),
            "text": Input((2, 3, 8)),
            "text_ids": Input((2, 3, 3)),
            "y": Input((2, 5)),
            "timesteps": Input((2,)),
            "guidance": Input((2,)),
        },
        slow_policies=("float32",),  # its timesteps are a Range of the policy's type
    ),
    # As sd3_mmdit, of 3 blocks (2 text norms in the first two, 1 in the last) whose first has a
    # second attention of the image alone, with its query's and key's norms, and with a scale and an
    # offset of its own behind the layer norm: two ops, whose dx is a third's.
    mmdit(
        "sd35_mmdit",
        {"layer_norm": 13, "rms_norm": 14},
        {
            "slow_knowledge": (STATIC,),
            "gradients": {"layer_norm": 14, "rms_norm": 14},
            "outputs": {"train": (3,) * 11 + (2,) * 16 + (1,)},
        },
        num_layers=3,
        dual_attention_indices=(0,),
    ),
    mmdit(
        "sd35_mmdit_of_any_batch",
        {"layer_norm": 13, "rms_norm": 14},
        {
            "slow_knowledge": (BATCH,),
            # There the gradient of both is understood as that of one norm without parameters.
            "expect_by": {"batch/train": {"layer_norm": 12, "rms_norm": 14}},
        },
        num_layers=3,
        dual_attention_indices=(0,),
    ),
]
