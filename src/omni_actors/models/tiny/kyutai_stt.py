"""A tiny Kyutai speech-to-text model: Mimi's codes in, one text token per frame out."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import (
    GenerationConfig,
    KyutaiSpeechToTextConfig,
    KyutaiSpeechToTextFeatureExtractor,
    KyutaiSpeechToTextForConditionalGeneration,
    PreTrainedTokenizerFast,
)

from omni_actors.models.tiny.speech import mimi_config, randomise_mimi
from omni_actors.models.tiny.text import TEXT
from omni_actors.models.tiny.weights import initialise, silence

SPECIALS = ["<unk>", "<s>", "</s>", "<pad>"]
PAD = 3
CODEBOOKS, CODES = 4, 64
DELAY_S, PREFIX_S = 0.5, 0.4

GAINS = {
    "model.layers.*": 1.4,
    "model.layers.*q_proj*": 2.5,
    "lm_head.*": 3.0,
    # Sound that is spread over the codebooks, so that other sound is other codes.
    "codec_model.quantizer.*input_proj*": 6.0,
}


def write(folder: Path, seed: int) -> None:
    """Write the checkpoint into `folder`."""
    words = tokenizer()
    model = KyutaiSpeechToTextForConditionalGeneration(settings(len(words)))
    initialise(model, seed, GAINS)
    randomise_mimi(model.codec_model, seed)
    # Most frames of speech begin no word, but a tiny model shall say something in most.
    silence(model.lm_head, [0, 1, 2, len(words)])
    model.generation_config = GenerationConfig(bos_token_id=len(words), pad_token_id=PAD, do_sample=False)
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    KyutaiSpeechToTextFeatureExtractor(
        audio_delay_seconds=DELAY_S,
        audio_silence_prefix_seconds=PREFIX_S,
        processor_class="KyutaiSpeechToTextProcessor",
    ).save_pretrained(folder)


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of word pieces in SentencePiece's form: a word's beginning is ``▁``."""
    made = Tokenizer(BPE(unk_token="<unk>"))
    made.normalizer = normalizers.NFKC()
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    made.train_from_iterator(TEXT.split(), BpeTrainer(vocab_size=400, special_tokens=SPECIALS, show_progress=False))
    return PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )


def settings(words: int) -> KyutaiSpeechToTextConfig:
    """Return the configuration. The text's vocabulary is the tokenizer's, followed by the token for the begin of a
    stream."""
    vocabulary = words + 1
    return KyutaiSpeechToTextConfig(
        vocab_size=vocabulary,
        codebook_vocab_size=CODES + 1,
        num_codebooks=CODEBOOKS,
        audio_bos_token_id=CODES,
        audio_pad_token_id=vocabulary + CODEBOOKS * (CODES + 1),
        bos_token_id=words,
        pad_token_id=PAD,
        hidden_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        ffn_dim=256,
        # Shorter than a clip of two seconds.
        sliding_window=24,
        max_position_embeddings=750,
        codec_config={**mimi_config(CODEBOOKS, CODES), "model_type": "mimi"},
    )
