"""A tiny Qwen2.5-Omni: thinker, talker, token2wav (DiT and BigVGAN) and two speakers; image, audio and video in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, Qwen2_5OmniConfig, Qwen2_5OmniForConditionalGeneration

from omni_actors.models.tiny.omni import chat_template, preprocessor, save
from omni_actors.models.tiny.text import ROLES, tokenizer
from omni_actors.models.tiny.weights import initialise, silence

# In the order of the checkpoint's ids, which begin at 151643.
SPECIALS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|AUDIO|>",
    "<|audio_bos|>",
    "<|audio_eos|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_bos|>",
    "<|vision_eos|>",
    "<|vision_pad|>",
    "<|IMAGE|>",
    "<|VIDEO|>",
]
NAMES = {
    "image_token": "<|IMAGE|>",
    "audio_token": "<|AUDIO|>",
    "video_token": "<|VIDEO|>",
    "vision_bos_token": "<|vision_bos|>",
    "vision_eos_token": "<|vision_eos|>",
    "audio_bos_token": "<|audio_bos|>",
    "audio_eos_token": "<|audio_eos|>",
}
SYSTEM = "You are a helpful assistant."

HIDDEN = 64
TALKER_HIDDEN = 48
VOCABULARY = 704
# The talker's marks in the text are embeddings behind the tokenizer's last token, as in the checkpoint.
TTS_PAD, TTS_START, TTS_END = VOCABULARY - 20, VOCABULARY - 19, VOCABULARY - 18
SPEAKER_BOS = {"Ethan": VOCABULARY - 9, "Chelsie": VOCABULARY - 7}
# The talker's vocabulary: the codes, unused places, then its marks, as far apart as the checkpoint's.
CODES = 128
CODEC_PAD, CODEC_BOS, CODEC_EOS, CODEC_MASK = CODES + 100, CODES + 101, CODES + 102, CODES + 104

ROPE = {"rope_type": "default", "rope_theta": 1000000.0, "mrope_section": [2, 3, 3]}

GAINS = {
    "*layers*": 1.4,
    "*self_attn.q_proj*": 2.5,
    "*lm_head*": 3.0,
    "*codec_head*": 3.0,
    # The vocoder adds up residual blocks: smaller steps keep its samples within [-1, 1].
    "token2wav.code2wav_bigvgan_model.ups.*.weight": 0.7,
    "token2wav.code2wav_bigvgan_model.resblocks.*.weight": 0.5,
    "token2wav.code2wav_bigvgan_model.*.bias": 0.3,
    "token2wav.code2wav_bigvgan_model.conv_post.weight": 2.0,
}


def write(folder: Path, seed: int) -> None:
    """Write the checkpoint into `folder`."""
    words = tokenizer(SPECIALS, {"eos_token": "<|im_end|>", **NAMES})
    assert len(words) <= TTS_PAD
    ids = {token: words.convert_tokens_to_ids(token) for token in [*SPECIALS, *ROLES]}
    model = Qwen2_5OmniForConditionalGeneration(settings(ids))
    initialise(model, seed, GAINS)
    special = range(ids["<|endoftext|>"], VOCABULARY)
    silence(model.thinker.lm_head, [number for number in special if number != ids["<|im_end|>"]])
    silence(model.talker.codec_head, [number for number in range(CODES, CODES + 128) if number != CODEC_EOS])
    # An end of speech now and then, but seldom in the first frames.
    silence(model.talker.codec_head, [CODEC_EOS], 0.8)
    model.generation_config = GenerationConfig(
        eos_token_id=[ids["<|im_end|>"], ids["<|endoftext|>"]],
        pad_token_id=ids["<|endoftext|>"],
        bos_token_id=ids["<|endoftext|>"],
    )
    model.thinker.generation_config = model.generation_config
    save(
        folder,
        model,
        words,
        chat_template(NAMES, system=SYSTEM),
        preprocessor(
            "Qwen2_5OmniProcessor", 14, [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
        ),
    )
    torch.save(speakers(seed), folder / "spk_dict.pt")


def speakers(seed: int) -> dict[str, dict[str, Any]]:
    """Return each speaker's first text token, embedding [1, dim] and reference mel spectrogram [1, frames, 80] (log, ≤
    0)."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: {
            "bos_token": token,
            "cond": torch.randn(1, 16, generator=generator),
            "ref_mel": torch.randn(1, 40 + 10 * number, 80, generator=generator) - 4,
        }
        for number, (name, token) in enumerate(SPEAKER_BOS.items())
    }


def settings(ids: dict[str, int]) -> Qwen2_5OmniConfig:
    """Return the configuration, with the `ids` of the special tokens and roles."""
    marks = {
        "audio_token_index": ids["<|AUDIO|>"],
        "image_token_index": ids["<|IMAGE|>"],
        "video_token_index": ids["<|VIDEO|>"],
        "audio_start_token_id": ids["<|audio_bos|>"],
        "audio_end_token_id": ids["<|audio_eos|>"],
        "vision_start_token_id": ids["<|vision_bos|>"],
        "vision_end_token_id": ids["<|vision_eos|>"],
        "position_id_per_seconds": 25,
        "seconds_per_chunk": 2,
    }
    decoder: dict[str, Any] = {
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rope_parameters": ROPE,
        "max_position_embeddings": 32768,
    }
    thinker = {
        **marks,
        "user_token_id": ids["user"],
        "audio_config": {
            "num_mel_bins": 128,
            "encoder_layers": 3,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 64,
            "d_model": 32,
            "output_dim": HIDDEN,
            "n_window": 100,
        },
        "vision_config": {
            "depth": 3,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "out_hidden_size": HIDDEN,
            "fullatt_block_indexes": [2],
            "patch_size": 14,
            "window_size": 56,
        },
        "text_config": {
            **decoder,
            "vocab_size": VOCABULARY,
            "hidden_size": HIDDEN,
            "intermediate_size": 128,
            "tie_word_embeddings": False,
        },
    }
    talker = {
        **marks,
        **decoder,
        "vocab_size": CODES + 128,
        "embedding_size": HIDDEN,
        "hidden_size": TALKER_HIDDEN,
        "intermediate_size": 96,
        "head_dim": 16,
        "tts_text_pad_token_id": TTS_PAD,
        "tts_text_start_token_id": TTS_START,
        "tts_text_end_token_id": TTS_END,
        "tts_codec_pad_token_id": CODEC_PAD,
        "tts_codec_start_token_id": CODEC_BOS,
        "tts_codec_end_token_id": CODEC_EOS,
        "tts_codec_mask_token_id": CODEC_MASK,
    }
    token2wav = {
        "dit_config": {
            "hidden_size": 32,
            "num_hidden_layers": 4,
            "num_attention_heads": 2,
            "head_dim": 16,
            "emb_dim": 32,
            "num_embeds": CODES + 1,
            "look_ahead_layers": [2],
            "look_backward_layers": [0, 3],
            "enc_emb_dim": 16,
            "enc_dim": 16,
            "enc_channels": [16, 16, 16, 16, 48],
            "enc_attention_channels": 8,
            "enc_se_channels": 8,
        },
        "bigvgan_config": {"upsample_initial_channel": 64},
    }
    return Qwen2_5OmniConfig(thinker_config=thinker, talker_config=talker, token2wav_config=token2wav)
