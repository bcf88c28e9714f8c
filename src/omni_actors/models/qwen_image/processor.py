"""The processor of pictures for the text encoder of Qwen-Image's edits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, Qwen2VLImageProcessor, Qwen2VLProcessor


class PictureProcessor(Qwen2VLProcessor):
    """Qwen2-VL's processor for pictures alone. The processor of videos would need torchvision, and is never used.

    Args:
        image_processor: The processor of pictures.
        tokenizer: The tokenizer.
    """

    def __init__(self, image_processor: Any, tokenizer: Any) -> None:
        super().__init__(image_processor, tokenizer, None)

    def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
        """Let the processor of videos be absent."""
        return None if argument is None else super().check_argument_for_proper_class(argument_name, argument)


def picture_processor(folder: str | Path) -> PictureProcessor:
    """Return the processor of a diffusers folder, from its component ``processor``."""
    own = Path(folder) / "processor"
    tokenizer = own if (own / "tokenizer_config.json").is_file() else Path(folder) / "tokenizer"
    return PictureProcessor(
        Qwen2VLImageProcessor.from_pretrained(own, local_files_only=True),
        AutoTokenizer.from_pretrained(tokenizer, local_files_only=True),
    )
