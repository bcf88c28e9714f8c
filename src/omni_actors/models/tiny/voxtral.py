"""A tiny Voxtral: a Whisper encoder in front of a Llama decoder, and Mistral's own tokenizer file."""

from __future__ import annotations

from pathlib import Path

from transformers import GenerationConfig, VoxtralConfig, VoxtralForConditionalGeneration, WhisperFeatureExtractor

from omni_actors.models.tiny.tekken import SPECIAL_TOKENS, write_tekken
from omni_actors.models.tiny.weights import initialise, silence

# Ids and names of the checkpoint's tekken.json.
SPECIALS = {
    0: "<unk>",
    1: "<s>",
    2: "</s>",
    3: "[INST]",
    4: "[/INST]",
    5: "[AVAILABLE_TOOLS]",
    6: "[/AVAILABLE_TOOLS]",
    7: "[TOOL_RESULTS]",
    8: "[/TOOL_RESULTS]",
    9: "[TOOL_CALLS]",
    10: "[IMG]",
    11: "<pad>",
    12: "[IMG_BREAK]",
    13: "[IMG_END]",
    14: "[PREFIX]",
    15: "[MIDDLE]",
    16: "[SUFFIX]",
    17: "[SYSTEM_PROMPT]",
    18: "[/SYSTEM_PROMPT]",
    19: "[TOOL_CONTENT]",
    24: "[AUDIO]",
    25: "[BEGIN_AUDIO]",
    34: "[TRANSCRIBE]",
}
BOS, EOS, PAD, AUDIO = 1, 2, 11, 24
SPECTROGRAM = {"num_mel_bins": 128, "window_size": 400, "hop_length": 160}
CLIPS = {"sampling_rate": 16000, "frame_rate": 12.5, "audio_encoding_config": SPECTROGRAM, "chunk_length_s": 30.0}

GAINS = {
    "*layers*": 1.4,
    "*language_model*self_attn.q_proj*": 2.5,
    "*embed_positions*": 0.3,
    # The convolutions in front shrink their input; the encoder should get more than its own positions.
    "*conv?.weight": 2.0,
    "*lm_head*": 3.0,
}


def write(folder: Path, seed: int) -> None:
    """Write the checkpoint into `folder`."""
    vocabulary = write_tekken(folder, SPECIALS, base=640, audio=CLIPS)
    model = VoxtralForConditionalGeneration(settings(vocabulary))
    initialise(model, seed, GAINS)
    silence(model.lm_head, [number for number in range(SPECIAL_TOKENS) if number != EOS])
    model.generation_config = GenerationConfig(bos_token_id=BOS, eos_token_id=EOS, pad_token_id=PAD)
    model.save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=128, processor_class="VoxtralProcessor").save_pretrained(folder)


def settings(vocabulary: int) -> VoxtralConfig:
    """Return the configuration. Four frames of the encoder are one token: its inner size is four times its width."""
    return VoxtralConfig(
        audio_config={
            "hidden_size": 32,
            "intermediate_size": 128,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "num_mel_bins": 128,
            "max_source_positions": 1500,
        },
        text_config={
            "vocab_size": vocabulary,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "max_position_embeddings": 32768,
            "rope_theta": 100000000.0,
            "tie_word_embeddings": False,
        },
        audio_token_id=AUDIO,
    )
