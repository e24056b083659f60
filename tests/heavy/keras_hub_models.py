"""KerasHub backbones in tiny random configurations, and inputs for them."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np


def hub() -> Any:
    """KerasHub, imported with the first model, since that takes seconds."""
    return importlib.import_module("keras_hub")


def internal(module: str) -> Any:
    """A module of models that KerasHub does not export."""
    return importlib.import_module(f"keras_hub.src.models.{module}")


@dataclasses.dataclass(frozen=True)
class Case:
    """A backbone and what its inputs need beyond their shapes.

    **Arguments:**

    - `make`: makes the model.
    - `length`: of sequences whose length is open.
    - `inputs`: the inputs that may not be drawn freely, without the batch of two.
    - `fixed_length`: the model cannot be traced with an open length of sequences.
    - `grad`: whether gradients are compared.
    """

    make: Callable[[], Any]
    length: int = 7
    inputs: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    fixed_length: bool = False
    grad: bool = True


TEXT = {"vocabulary_size": 11, "num_layers": 2, "hidden_dim": 8, "intermediate_dim": 12}
ENCODER = {**TEXT, "num_heads": 2, "max_sequence_length": 16}
# Grouped queries: fewer heads of keys and values than of queries.
DECODER = {**TEXT, "num_query_heads": 4, "num_key_value_heads": 2}
EXPERTS = {**DECODER, "num_experts": 3, "top_k": 2}
GEMMA = {**DECODER, "head_dim": 4}
IMAGE = (16, 16, 3)
VISION = {
    "image_shape": IMAGE, "patch_size": 4, "num_layers": 2, "num_heads": 2, "hidden_dim": 8,
    "intermediate_dim": 12,
}  # fmt: skip


def text(
    name: str,
    *,
    length: int = 7,
    fixed_length: bool = False,
    grad: bool = True,
    **arguments: Any,
) -> Case:
    make = lambda: getattr(hub().models, name)(**arguments)  # noqa: E731
    return Case(make, length, fixed_length=fixed_length, grad=grad)


def vision(name: str, **arguments: Any) -> Case:
    return Case(lambda: getattr(hub().models, name)(**arguments))


def without(arguments: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {k: v for k, v in arguments.items() if k not in names}


def resnet(**arguments: Any) -> Any:
    return hub().models.ResNetBackbone(
        **{
            "input_conv_filters": [64], "input_conv_kernel_sizes": [7],
            "stackwise_num_filters": [64, 8, 8, 8], "stackwise_num_blocks": [1, 1, 1, 1],
            "stackwise_num_strides": [1, 2, 2, 2], "block_type": "basic_block",
            "image_shape": (32, 32, 3), **arguments,
        }
    )  # fmt: skip


def mit() -> Any:
    return hub().models.MiTBackbone(
        layerwise_depths=[1, 1], num_layers=2, layerwise_num_heads=[1, 2],
        layerwise_sr_ratios=[2, 1], max_drop_path_rate=0.1, layerwise_patch_sizes=[7, 3],
        layerwise_strides=[4, 2], image_shape=IMAGE, hidden_dims=[4, 8],
    )  # fmt: skip


def dinov2(**arguments: Any) -> Any:
    shape = {"position_embedding_shape": (24, 24), "num_register_tokens": 1}
    return hub().models.DINOV2Backbone(**{**VISION, **shape, **arguments})


def depth_anything() -> Any:
    return hub().models.DepthAnythingBackbone(
        image_encoder=dinov2(
            num_layers=4, num_register_tokens=0, image_shape=(32, 32, 3)
        ),
        reassemble_factors=[4, 2, 1, 0.5], neck_hidden_dims=[4, 4, 8, 8], fusion_hidden_dim=8,
        head_hidden_dim=4, head_in_index=-1, feature_keys=["stage1", "stage2", "stage3", "stage4"],
    )  # fmt: skip


def two_towers(name: str, **arguments: Any) -> Any:
    """A model of images and text side by side."""
    prefix, models = name.removesuffix("Backbone"), hub().models
    words = {**TEXT, "embedding_dim": 8, "num_heads": 2, "max_sequence_length": 7}
    return getattr(models, name)(
        vision_encoder=getattr(models, prefix + "VisionEncoder")(**VISION),
        text_encoder=getattr(models, prefix + "TextEncoder")(**words),
        **arguments,
    )


def sam() -> Any:
    size = 16
    return hub().models.SAMBackbone(
        image_encoder=hub().models.ViTDetBackbone(
            hidden_size=8, num_layers=2, intermediate_dim=12, num_heads=2,
            global_attention_layer_indices=[1], patch_size=4, num_output_channels=8,
            window_size=2, image_shape=(size, size, 3),
        ),
        prompt_encoder=hub().layers.SAMPromptEncoder(
            hidden_size=8, image_embedding_size=(4, 4), input_image_size=(size, size),
            mask_in_channels=4,
        ),
        mask_decoder=hub().layers.SAMMaskDecoder(
            num_layers=2, hidden_size=8, intermediate_dim=12, num_heads=2, embedding_dim=8,
            num_multimask_outputs=3, iou_head_depth=2, iou_head_hidden_dim=8,
        ),
    )  # fmt: skip


def parseq() -> Any:
    return hub().models.PARSeqBackbone(
        image_encoder=hub().models.ViTBackbone(
            **without(VISION, "intermediate_dim"), mlp_dim=12, use_class_token=False
        ),
        vocabulary_size=11, max_label_length=7, decoder_hidden_dim=8, num_decoder_layers=1,
        num_decoder_heads=2, decoder_mlp_dim=12,
    )  # fmt: skip


def gemma3_with_images() -> Any:
    encoder = internal("gemma3.gemma3_vision_encoder").Gemma3VisionEncoder(
        image_size=16, patch_size=4, num_heads=2, hidden_dim=8, num_layers=1, intermediate_dim=12,
        output_dim=8, pool_size=2,
    )  # fmt: skip
    return hub().models.Gemma3Backbone(**GEMMA, image_size=16, vision_encoder=encoder)


T5GEMMA = {
    "vocabulary_size": 11,
    **{
        f"{side}_{k}": v
        for side in ("encoder", "decoder")
        for k, v in {
            "hidden_dim": 8, "intermediate_dim": 12, "num_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 4,
            "layer_types": ["sliding_attention", "full_attention"],
        }.items()
    },
    "sliding_window": 3, "query_pre_attn_scalar": 4.0, "attn_logit_softcapping": 5.0,
}  # fmt: skip

BACKBONES: dict[str, Case] = {
    # encoders of text
    "Albert": text("AlbertBackbone", **ENCODER, embedding_dim=6),
    "BERT": text("BertBackbone", **ENCODER),
    "DeBERTaV3": text("DebertaV3Backbone", **ENCODER, bucket_size=4),
    "DistilBERT": text("DistilBertBackbone", **ENCODER),
    "Electra": text(
        "ElectraBackbone", **without(ENCODER, "vocabulary_size"), vocab_size=11, embedding_dim=6
    ),
    "ESM": text("ESMBackbone", **ENCODER),
    "FNet": text("FNetBackbone", **without(ENCODER, "num_heads")),
    "RoBERTa": text("RobertaBackbone", **ENCODER),
    "RoFormerV2": text(
        "RoformerV2Backbone", **without(ENCODER, "max_sequence_length"), head_size=4
    ),
    "XLMRoBERTa": text("XLMRobertaBackbone", **ENCODER),
    "XLNet": text("XLNetBackbone", **without(ENCODER, "max_sequence_length")),
    # decoders
    "Bloom": text("BloomBackbone", **without(ENCODER, "max_sequence_length")),
    "Falcon": text("FalconBackbone", **TEXT, num_attention_heads=2),
    "Gemma": text("GemmaBackbone", **GEMMA),
    "Gemma2": text(
        "GemmaBackbone", **GEMMA, use_post_ffw_norm=True, use_post_attention_norm=True,
        attention_logit_soft_cap=5.0, final_logit_soft_cap=3.0, use_sliding_window_attention=True,
        sliding_window_size=3,
    ),
    "Gemma3": text(
        "Gemma3Backbone", **GEMMA, image_size=16, use_sliding_window_attention=True,
        sliding_window_size=3, use_post_ffw_norm=True, use_post_attention_norm=True,
    ),
    "Gemma4": text(
        "Gemma4Backbone", **GEMMA, image_size=16, sliding_window_size=3, sliding_window_pattern=2
    ),
    "GPT2": text("GPT2Backbone", **ENCODER),
    "GPTNeoX": text("GPTNeoXBackbone", **ENCODER, rotary_percentage=0.5),
    "GPT-OSS": text("GptOssBackbone", **EXPERTS, sliding_window=3, head_dim=4),
    "Llama": text("LlamaBackbone", **DECODER),
    "Llama3": text(
        "Llama3Backbone", **DECODER, rope_frequency_adjustment_factor=8.0, rope_low_freq_factor=1.0,
        rope_high_freq_factor=4.0, rope_pretraining_sequence_length=16,
    ),
    "Mistral": text("MistralBackbone", **DECODER, sliding_window=3),
    "Mixtral": text("MixtralBackbone", **EXPERTS, sliding_window=3),
    "OPT": text("OPTBackbone", **ENCODER),
    "Phi3": text("Phi3Backbone", **DECODER, max_sequence_length=16),
    "Qwen": text("QwenBackbone", **DECODER),
    "QwenMoE": text(
        "QwenMoeBackbone", **EXPERTS, moe_intermediate_dim=8, shared_expert_intermediate_dim=8
    ),
    "Qwen3": text("Qwen3Backbone", **DECODER, head_dim=4),
    "Qwen3MoE": text("Qwen3MoeBackbone", **EXPERTS, moe_intermediate_dim=8, head_dim=4),
    "Qwen3.5": text(
        "Qwen3_5Backbone", **DECODER, head_dim=8, linear_num_key_heads=2, linear_num_value_heads=4,
        linear_key_head_dim=4, linear_value_head_dim=4,
        layer_types=["linear_attention", "full_attention"], fixed_length=True,
    ),
    # XLA takes minutes to compile its gradient; that of the model before is compared.
    "Qwen3.5MoE": text(
        "Qwen3_5MoeBackbone", **without(EXPERTS, "intermediate_dim"), head_dim=8,
        linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=4,
        linear_value_head_dim=4, moe_intermediate_dim=8, shared_expert_intermediate_size=8,
        layer_types=["linear_attention", "full_attention"], fixed_length=True,
        grad=False,
    ),
    "RWKV7": text(
        "RWKV7Backbone", hidden_size=8, head_size=4, num_layers=2, vocabulary_size=11,
        intermediate_dim=12, gate_lora=4, mv_lora=4, aaa_lora=4, decay_lora=4, length=16,
        fixed_length=True,
    ),
    "SmolLM3": text(
        "SmolLM3Backbone", **without(DECODER, "num_query_heads"), num_attention_heads=4,
        attention_bias=True, attention_dropout=0.0, rope_layer_enabled_list=[True, False],
        layer_types=["full_attention", "full_attention"], mlp_bias=True, layer_norm_epsilon=1e-5,
        max_position_embeddings=16, rope_theta=1e4, partial_rotary_factor=1.0,
    ),
    # from sequence to sequence
    "BART": text("BartBackbone", **ENCODER),
    "EdRec": text(
        "EdRecBackbone", vocab_size=11, num_layers_enc=2, num_layers_dec=2, hidden_dim=8,
        intermediate_dim=12, num_heads=2,
    ),
    "T5": text("T5Backbone", **without(ENCODER, "max_sequence_length")),
    "T5Gemma": text("T5GemmaBackbone", **T5GEMMA),
    "T5Gemma2": text("T5Gemma2Backbone", **T5GEMMA),
    # sound
    "Moonshine": Case(
        lambda: hub().models.MoonshineBackbone(
            vocabulary_size=11, filter_dim=8, encoder_num_layers=1, decoder_num_layers=1,
            hidden_dim=8, intermediate_dim=12, encoder_num_heads=2, decoder_num_heads=2,
        ),
        inputs={
            "encoder_input_values": np.linspace(-1, 1, 2048, dtype=np.float32)[:, None],
            "encoder_padding_mask": np.ones(2048, bool),
        },
    ),
    "Whisper": text(
        "WhisperBackbone", **without(ENCODER, "max_sequence_length"), num_mels=5,
        max_encoder_sequence_length=16, max_decoder_sequence_length=8, length=8,
    ),
    # images
    "CSPNet": vision(
        "CSPNetBackbone", stem_filters=4, stem_kernel_size=3, stem_strides=1,
        stackwise_depth=[1, 2], stackwise_strides=[1, 2], stackwise_num_filters=[4, 8],
        block_type="dark_block", stage_type="csp", expand_ratio=[2.0], image_shape=IMAGE,
    ),
    "DeiT": vision("DeiTBackbone", **VISION),
    "DenseNet": vision(
        "DenseNetBackbone", stackwise_num_repeats=[1, 2], growth_rate=4, image_shape=(32, 32, 3)
    ),
    "DINOv2": Case(dinov2),
    "DINOv3": vision("DINOV3Backbone", **VISION, num_register_tokens=1),
    "EfficientNet": vision(
        "EfficientNetBackbone", stackwise_kernel_sizes=[3, 5], stackwise_num_repeats=[1, 2],
        stackwise_input_filters=[4, 8], stackwise_output_filters=[8, 8],
        stackwise_expansion_ratios=[1, 4], stackwise_squeeze_and_excite_ratios=[0.0, 0.25],
        stackwise_strides=[1, 2], stackwise_block_types=["fused", "unfused"],
        stackwise_width_coefficients=[1.0, 1.0], stackwise_depth_coefficients=[1.0, 1.0],
        stackwise_force_input_filters=[0, 0], stackwise_nores_option=[False, False],
        input_shape=IMAGE, num_features=8,
    ),
    "HGNetV2": vision(
        "HGNetV2Backbone", depths=[1, 2], embedding_size=4, hidden_sizes=[8, 8],
        stem_channels=[3, 4, 4], hidden_act="relu", use_learnable_affine_block=True,
        stackwise_stage_filters=[(4, 4, 8, 1, 2, 3), (8, 4, 8, 2, 2, 3)],
        apply_downsample=[False, True], use_lightweight_conv_block=[False, True],
        image_shape=IMAGE,
    ),
    "MiT": Case(mit),
    "MobileNet": vision(
        "MobileNetBackbone", stackwise_expansion=[[8], [8, 8]], stackwise_num_blocks=[1, 2],
        stackwise_num_filters=[[8], [8, 8]], stackwise_kernel_size=[[3], [5, 5]],
        stackwise_num_strides=[[2], [2, 1]], stackwise_se_ratio=[[0.25], [None, 0.25]],
        stackwise_activation=[["relu"], ["hard_swish", "hard_swish"]],
        stackwise_padding=[[1], [2, 2]], output_num_filters=8, depthwise_filters=8,
        depthwise_stride=2, depthwise_residual=False, last_layer_filter=8,
        squeeze_and_excite=0.5, image_shape=IMAGE,
    ),
    "MobileNetV5": vision(
        "MobileNetV5Backbone", stackwise_block_types=[["er"], ["uir", "mqa"]],
        stackwise_num_blocks=[1, 2], stackwise_num_filters=[[8], [8, 8]],
        stackwise_strides=[[2], [2, 1]], stackwise_act_layers=[["relu"], ["gelu", "gelu"]],
        stackwise_exp_ratios=[[2.0], [2.0, 2.0]], stackwise_se_ratios=[[0.0], [0.0, 0.0]],
        stackwise_dw_kernel_sizes=[[0], [5, 3]], stackwise_dw_start_kernel_sizes=[[0], [0, 0]],
        stackwise_dw_end_kernel_sizes=[[0], [0, 0]], stackwise_exp_kernel_sizes=[[3], [0, 0]],
        stackwise_pw_kernel_sizes=[[1], [0, 0]], stackwise_num_heads=[[0], [0, 2]],
        stackwise_key_dims=[[0], [0, 4]], stackwise_value_dims=[[0], [0, 4]],
        stackwise_kv_strides=[[0], [0, 1]], stackwise_use_cpe=[[False], [False, False]],
        use_msfa=False, stem_size=8, num_features=8, image_shape=IMAGE,
    ),
    "ResNet": Case(resnet),
    "ResNet V2": Case(lambda: resnet(block_type="bottleneck_block", use_pre_activation=True)),
    "ResNet D": Case(
        lambda: resnet(
            input_conv_filters=[4, 4, 4], input_conv_kernel_sizes=[3, 3, 3],
            block_type="bottleneck_block_vd",
        )
    ),
    "SwinTransformer": vision(
        "SwinTransformerBackbone", image_shape=(32, 32, 3), embed_dim=4, depths=(2, 2),
        num_heads=(1, 2), window_size=4, patch_size=2,
    ),
    "VGG": vision(
        "VGGBackbone", stackwise_num_repeats=[1, 2], stackwise_num_filters=[4, 8],
        image_shape=IMAGE,
    ),
    "ViT": vision("ViTBackbone", **without(VISION, "intermediate_dim"), mlp_dim=12),
    "ViTDet": vision(
        "ViTDetBackbone", hidden_size=8, num_layers=2, intermediate_dim=12, num_heads=2,
        global_attention_layer_indices=[1], patch_size=4, num_output_channels=8, window_size=3,
        image_shape=IMAGE,
    ),
    "Xception": vision(
        "XceptionBackbone", stackwise_conv_filters=[[4, 4], [4, 8], [8, 8]],
        stackwise_pooling=[True, True, False], image_shape=(32, 32, 3),
    ),
    # features into maps
    "DeepLabV3": Case(
        lambda: hub().models.DeepLabV3Backbone(
            image_encoder=resnet(), projection_filters=4, low_level_feature_key="P2",
            spatial_pyramid_pooling_key="P4", upsampling_size=4, dilation_rates=[1, 2],
            image_shape=(32, 32, 3),
        )
    ),
    "DepthAnything": Case(depth_anything),
    "RetinaNet": Case(
        lambda: hub().models.RetinaNetBackbone(
            image_encoder=resnet(), min_level=3, max_level=6, use_p5=False,
            image_shape=(32, 32, 3),
        )
    ),
    "SegFormer": Case(lambda: hub().models.SegFormerBackbone(mit(), projection_filters=4)),
    "VAE": Case(
        lambda: internal("vae.vae_backbone").VAEBackbone(
            encoder_num_filters=[32, 32], encoder_num_blocks=[1, 1],
        decoder_num_filters=[32, 32], decoder_num_blocks=[1, 1], sampler_method="mode",
        )
    ),
    # several kinds of input
    "CLIP": Case(lambda: two_towers("CLIPBackbone", projection_dim=6)),
    "Gemma3 with images": Case(
        gemma3_with_images,
        length=9,
        inputs={
            "images": np.linspace(0, 1, 768, dtype=np.float32).reshape(1, *IMAGE),
            "vision_indices": np.array([2, 3, 4, 5], np.int32),
            "vision_mask": np.array([0, 0, 1, 1, 1, 1, 0, 0, 0], np.int32),
        },
    ),
    "MetaCLIP2": Case(lambda: two_towers("MetaCLIP2Backbone", projection_dim=6)),
    "PaliGemma": text(
        "PaliGemmaBackbone", **GEMMA, image_size=16, vit_patch_size=4, vit_num_heads=2,
        vit_hidden_dim=8, vit_num_layers=1, vit_intermediate_dim=12,
    ),
    "PARSeq": Case(parseq),
    "SAM": Case(
        sam,
        inputs={
            "points": np.array([[3.0, 5.0], [9.0, 2.0]], np.float32),
            "labels": np.array([1.0, 0.0], np.float32),
            "boxes": np.array([[[2.0, 3.0], [9.0, 12.0]]], np.float32),
            "masks": np.zeros((0, 16, 16, 1), np.float32),
        },
    ),
    "SigLIP": Case(lambda: two_towers("SigLIPBackbone")),
    # vectors
    "RQVAE": Case(
        lambda: internal("rqvae.rqvae_backbone").RQVAEBackbone(
            input_dim=10, encoder_layer_dims=[12, 8], output_dim=6, decoder_layer_dims=[8, 12],
            num_embeddings=5, num_quantizers=2,
        )
    ),
}  # fmt: skip


def inputs_of(model: Any, case: Case, seed: int = 0) -> Any:
    """Random inputs for a batch of two, in the model's structure."""
    rng = np.random.default_rng(seed)

    def draw(name: str, tensor: Any) -> np.ndarray:
        if name in case.inputs:
            return np.stack([case.inputs[name]] * 2)
        shape = tuple(case.length if n is None else n for n in tensor.shape[1:])
        dtype = np.dtype(tensor.dtype)
        if "mask" in name:
            # One padded row. What is attended nowhere is no test of attention.
            kept = np.ones((2, *shape), dtype)
            kept[1, -2:] = 0
            return kept
        if dtype.kind == "i":
            return rng.integers(0, 2 if "segment" in name else 11, (2, *shape)).astype(dtype)
        return rng.uniform(-1, 1, (2, *shape)).astype(dtype)

    if isinstance(model.input, Mapping):
        return {name: draw(name, tensor) for name, tensor in model.input.items()}
    assert not isinstance(model.input, list)
    return draw("images", model.input)


def specs_of(model: Any, case: Case, inputs: Any, *, open_sizes: bool) -> Any:
    """The types of the inputs, with the model's open sizes."""
    import tensorflow as tf

    def spec(tensor: Any, x: np.ndarray) -> Any:
        shape = x.shape
        if open_sizes:
            shape = [None, *x.shape[1:]] if case.fixed_length else tensor.shape
        return tf.TensorSpec(shape, x.dtype)

    if isinstance(inputs, Mapping):
        return {name: spec(model.input[name], x) for name, x in inputs.items()}
    return spec(model.input, inputs)


def perturb(model: Any, seed: int = 0) -> None:
    """Random weights in place of zeros and ones, which hide mistakes."""
    rng = np.random.default_rng(seed)
    for v in model.weights:
        if v.dtype.startswith(("float", "bfloat")):
            noise = rng.normal(size=v.shape) * 0.1
            # Variances stay positive.
            v.assign(v + np.asarray(np.abs(noise) if "variance" in v.path else noise, v.dtype))
