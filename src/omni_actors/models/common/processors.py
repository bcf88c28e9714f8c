"""Processors of checkpoints with a codec that is a checkpoint of its own, only named by the processor."""

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
    """Return the settings of the folder's processor; empty without a file of settings."""
    return _read(folder / "processor_config.json")


def audio_tokenizer_folder(folder: Path) -> Path:
    """Return the folder of the codec named by a checkpoint's processor: in the checkpoint's folder, at a path of this
    machine, or in the Hugging Face cache. Raises :class:`OmniError` (500) when no codec is named, or none of these
    places has one."""
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
    """Return a processor of the folder with this codec, or without one."""
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
