"""Processors of checkpoints whose codec is a checkpoint of its own, which they only name."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

from transformers import AutoFeatureExtractor, AutoTokenizer

from omni_actors.models.weights.hub.companions import codec_of, places_of
from omni_actors.pipelines.weights.hub import PUBLIC_NAME
from omni_actors.pipelines.weights.intact import PULL_COMMAND
from omni_actors.protocol.errors import ErrorInfo, OmniError


def processor_settings(folder: Path) -> dict[str, Any]:
    """What the folder says of its processor; nothing where it has no file for that."""
    return _read(folder / "processor_config.json")


def audio_tokenizer_folder(folder: Path) -> Path:
    """Where the codec lies that a checkpoint's processor names: in the checkpoint's folder, at a path of this machine,
    or in the Hugging Face cache. Raises :class:`OmniError` (500) when it names none, or is in none of these places."""
    try:
        name = codec_of(folder)
    except (OSError, ValueError) as error:
        raise _bad(f"the processor of {folder} cannot be read: {error}") from error
    if name is None:
        raise _bad(f"the processor of {folder} names no codec")
    for place in places_of(folder, name):
        if (place / "config.json").exists():
            return place
    how = f"; run: {PULL_COMMAND} {name}" if PUBLIC_NAME.fullmatch(name) else ""
    message = f"{folder} names the codec '{name}', which is neither a folder nor in this machine's Hugging Face cache"
    raise _bad(message + how)


def load_processor(processor_class: Any, folder: Path, audio_tokenizer: Any) -> Any:
    """A processor of the folder with this codec, or with none."""
    known = inspect.signature(processor_class.__init__).parameters.keys() - {"audio_tokenizer"}
    settings = processor_settings(folder)
    own = {name: value for name, value in settings.items() if name in known and not isinstance(value, dict)}
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    if "chat_template" in known:
        template = folder / "chat_template.jinja"
        own["chat_template"] = template.read_text(encoding="utf-8") if template.exists() else tokenizer.chat_template
    return processor_class(
        feature_extractor=AutoFeatureExtractor.from_pretrained(folder, local_files_only=True),
        tokenizer=tokenizer,
        audio_tokenizer=audio_tokenizer,
        **own,
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        read: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise _bad(f"{path} cannot be read: {error}") from error
    return read


def _bad(message: str) -> OmniError:
    return OmniError(ErrorInfo(message=message, code="bad_model", status=500))
