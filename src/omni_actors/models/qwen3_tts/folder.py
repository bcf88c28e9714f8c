"""The facts in a checkpoint's small files: its kind, voices and languages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omni_actors.protocol.errors import invalid_request

KINDS = {"custom_voice": "custom_voice", "voice_design": "voice_design", "base": "clone"}
"""A checkpoint's ``tts_model_type`` → the ``task_type`` that it does."""

CODES = {
    "de": "german",
    "en": "english",
    "es": "spanish",
    "fr": "french",
    "it": "italian",
    "ja": "japanese",
    "ko": "korean",
    "pt": "portuguese",
    "ru": "russian",
    "zh": "chinese",
}
"""ISO 639-1 → the checkpoints' names."""

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Folder:
    """The facts about one checkpoint.

    ``voices`` and ``language_ids`` map names in lower case to ids in the codec's vocabulary; ``dialects`` maps a voice
    that speaks a dialect to the dialect's name in ``language_ids``. ``instructed`` says whether instructions have an
    effect. ``generation`` is ``generation_config.json``, ``sample_rate`` the rate of the sound in Hz."""

    kind: str
    voices: Mapping[str, int]
    dialects: Mapping[str, str]
    language_ids: Mapping[str, int]
    instructed: bool
    sample_rate: int
    generation: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path) -> Folder:
        """Raises ``OSError``, ``KeyError`` or ``ValueError`` for one that is no Qwen3-TTS (12 Hz) checkpoint."""
        config = _read(folder / "config.json")
        codec = _read(folder / "speech_tokenizer" / "config.json")
        if codec["model_type"] != "qwen3_tts_tokenizer_12hz":
            raise ValueError(f"its codec is {codec['model_type']!r}: only the 12 Hz codec is served")
        talker = config["talker_config"]
        kind = KINDS[config["tts_model_type"]]
        return cls(
            kind=kind,
            voices={name.lower(): int(i) for name, i in (talker.get("spk_id") or {}).items()},
            dialects={name.lower(): it for name, it in (talker.get("spk_is_dialect") or {}).items() if it},
            language_ids={name.lower(): int(i) for name, i in (talker.get("codec_language_id") or {}).items()},
            # The package drops them for the small custom voices ("0b6"), and has no place for them in a clone.
            instructed=kind == "voice_design" or (kind == "custom_voice" and config["tts_model_size"] != "0b6"),
            sample_rate=int(codec["output_sample_rate"]),
            generation=_read(folder / "generation_config.json"),
        )

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages that a request may name, beside ``auto``; dialects belong to voices."""
        return tuple(name for name in self.language_ids if "dialect" not in name)

    def voice(self, name: str) -> str | None:
        """The voice's own name; ``None`` where the checkpoint has none. Raises 400 for an unknown one."""
        if not self.voices and name == "default":
            return None
        if name == "default":
            return next(iter(self.voices))
        if name.lower() not in self.voices:
            raise invalid_request(f"Invalid voice '{name}'. Supported: {', '.join(self.voices) or 'none'}.", "voice")
        return name.lower()

    def language(self, name: str | None) -> str:
        """The language's own name, or ``auto``. Raises 400 for an unknown one."""
        known = (name or AUTO).lower()
        known = CODES.get(known.replace("_", "-").split("-")[0], known)
        if known != AUTO and known not in self.languages:
            supported = ", ".join((AUTO, *self.languages))
            raise invalid_request(f"Invalid language '{name}'. Supported: {supported}.", "language")
        return known

    def language_id(self, name: str | None, voice: str | None) -> int | None:
        """The mark of the language, ``None`` to let the model find out. A voice with a dialect speaks that where
        Chinese, or nothing, is asked for."""
        language = self.language(name)
        if voice is not None and voice in self.dialects and language in ("chinese", AUTO):
            language = self.dialects[voice]
        return self.language_ids.get(language)


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found
