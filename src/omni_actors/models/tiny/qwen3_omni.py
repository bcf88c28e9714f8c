"""A tiny Qwen3-Omni: thinker (MoE), talker (MoE) with its code predictor, code2wav; image, audio and video in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import GenerationConfig, Qwen3OmniMoeConfig, Qwen3OmniMoeForConditionalGeneration

from omni_actors.models.tiny.omni import chat_template, preprocessor, save
from omni_actors.models.tiny.text import ROLES, tokenizer
from omni_actors.models.tiny.weights import initialise, silence

# In the order of the checkpoint's ids, which begin at 151643.
SPECIALS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
    "<tts_text_bos_single>",
    "<|audio_pad|>",
]
NAMES = {
    "image_token": "<|image_pad|>",
    "audio_token": "<|audio_pad|>",
    "video_token": "<|video_pad|>",
    "vision_bos_token": "<|vision_start|>",
    "vision_eos_token": "<|vision_end|>",
    "audio_bos_token": "<|audio_start|>",
    "audio_eos_token": "<|audio_end|>",
}

HIDDEN = 64
TALKER_HIDDEN = 48
CODES = 128
GROUPS = 8
# The talker's vocabulary: the codes of the first group, then 1024 places for marks and speakers. The offsets are the
# checkpoint's.
PAD, BOS, EOS, NOTHINK, THINK_BOS, THINK_EOS = (CODES + offset for offset in (100, 101, 102, 107, 108, 109))
SPEAKERS = {"chelsie": CODES + 253, "ethan": CODES + 254, "aiden": CODES + 255}

ROPE = {
    "rope_type": "default",
    "rope_theta": 1000000.0,
    "mrope_section": [4, 2, 2],
    "mrope_interleaved": True,
    "interleaved": True,
}

GAINS = {
    "*layers*": 1.4,
    "*q_norm*": 3.0,
    "*lm_head*": 3.0,
    "*codec_head*": 3.0,
    # The vocoder adds up residual units: smaller steps keep its samples within [-1, 1]. ConvNeXt's scale is made 1e-6.
    "code2wav.*.gamma": 3e5,
    "code2wav.decoder.*.conv?.conv.weight": 0.3,
    "code2wav.decoder.?.block.?.conv.weight": 0.6,
    "code2wav.decoder.*.bias": 0.3,
    "code2wav.decoder.6.conv.weight": 0.4,
}


def write(folder: Path, seed: int) -> None:
    """Write the checkpoint into `folder`."""
    words = tokenizer(SPECIALS, {"eos_token": "<|im_end|>", **NAMES})
    vocabulary = 704
    assert len(words) <= vocabulary
    config = settings({token: words.convert_tokens_to_ids(token) for token in [*SPECIALS, *ROLES]}, vocabulary)
    model = Qwen3OmniMoeForConditionalGeneration(config)
    initialise(model, seed, GAINS)
    im_end = words.convert_tokens_to_ids("<|im_end|>")
    silence(model.thinker.lm_head, [number for number in range(640, vocabulary) if number != im_end])
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=0.7,
        top_p=0.8,
        top_k=20,
        repetition_penalty=1.05,
        eos_token_id=[im_end, words.convert_tokens_to_ids("<|endoftext|>")],
        pad_token_id=words.convert_tokens_to_ids("<|endoftext|>"),
    )
    save(
        folder,
        model,
        words,
        chat_template(NAMES, system=None),
        preprocessor("Qwen3OmniMoeProcessor", 16, [0.5] * 3, [0.5] * 3),
    )


def settings(ids: dict[str, int], vocabulary: int) -> Qwen3OmniMoeConfig:
    """Return the configuration: `ids` of the special tokens and roles, `vocabulary` of the thinker."""
    vision: dict[str, Any] = {
        "depth": 4,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": HIDDEN,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0, 1, 2],
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }
    audio: dict[str, Any] = {
        "num_mel_bins": 128,
        "encoder_layers": 3,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 64,
        "d_model": 32,
        "output_dim": HIDDEN,
        "downsample_hidden_size": 16,
        "n_window": 50,
        "n_window_infer": 800,
    }
    decoder: dict[str, Any] = {
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "moe_intermediate_size": 32,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "rope_parameters": ROPE,
        "max_position_embeddings": 32768,
    }
    placeholders = {
        "audio_token_id": ids["<|audio_pad|>"],
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "audio_start_token_id": ids["<|audio_start|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
    }
    thinker = {
        **placeholders,
        "audio_end_token_id": ids["<|audio_end|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "user_token_id": ids["user"],
        "position_id_per_seconds": 13,
        "vision_config": vision,
        "audio_config": audio,
        "text_config": {**decoder, "vocab_size": vocabulary, "hidden_size": HIDDEN},
    }
    predictor: dict[str, Any] = {
        "vocab_size": CODES,
        "hidden_size": TALKER_HIDDEN,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_code_groups": GROUPS,
    }
    talker = {
        **placeholders,
        "num_code_groups": GROUPS,
        "thinker_hidden_size": HIDDEN,
        "accept_hidden_layer": 2,
        "spatial_merge_size": 2,
        "position_id_per_seconds": 13,
        "codec_pad_id": PAD,
        "codec_bos_id": BOS,
        "codec_eos_token_id": EOS,
        "codec_nothink_id": NOTHINK,
        "codec_think_bos_id": THINK_BOS,
        "codec_think_eos_id": THINK_EOS,
        "speaker_id": SPEAKERS,
        "code_predictor_config": predictor,
        "text_config": {
            **decoder,
            "vocab_size": CODES + 1024,
            "hidden_size": TALKER_HIDDEN,
            "intermediate_size": 96,
            "shared_expert_intermediate_size": 64,
        },
    }
    code2wav = {
        "codebook_size": CODES,
        "num_quantizers": GROUPS,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "decoder_dim": 32,
        "upsample_rates": [8, 5, 4, 3],
        "upsampling_ratios": [2, 2],
        # Short enough for the left context of 25 frames with which transformers decodes long codes in chunks.
        "sliding_window": 5,
        "layer_scale_initial_scale": 0.3,
    }
    return Qwen3OmniMoeConfig(
        thinker_config=thinker,
        talker_config=talker,
        code2wav_config=code2wav,
        im_start_token_id=ids["<|im_start|>"],
        im_end_token_id=ids["<|im_end|>"],
        tts_pad_token_id=ids["<tts_pad>"],
        tts_bos_token_id=ids["<tts_text_bos>"],
        tts_eos_token_id=ids["<tts_text_eod>"],
        system_token_id=ids["system"],
        user_token_id=ids["user"],
        assistant_token_id=ids["assistant"],
    )
