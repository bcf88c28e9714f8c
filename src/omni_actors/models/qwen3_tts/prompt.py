"""The talker's prompt, and its input beside each frame: two columns, text and codec.

A row of the talker's input is the sum of both columns' embeddings. The order is the one of the package's
``Qwen3TTSForConditionalGeneration.generate``: instructions, the head of the assistant's turn, the codec's marks and the
voice under padding; then either the whole text at once, or a piece of the text with every frame. A clip to continue
from comes before the text, with the clip's own text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

HEAD = "<|im_start|>assistant\n"
INSTRUCTIONS = "<|im_start|>user\n{}<|im_end|>\n"


@dataclass(frozen=True, slots=True)
class Marks:
    """Ids of a checkpoint's own words: of the text's vocabulary (``text_…``), and of the codec's."""

    text_bos: int
    text_eos: int
    text_pad: int
    think: int
    nothink: int
    think_bos: int
    think_eos: int
    pad: int
    bos: int
    eos: int

    @classmethod
    def of(cls, config: Any) -> Marks:
        """Read the marks of a ``Qwen3TTSConfig``."""
        talker = config.talker_config
        return cls(
            text_bos=config.tts_bos_token_id,
            text_eos=config.tts_eos_token_id,
            text_pad=config.tts_pad_token_id,
            think=talker.codec_think_id,
            nothink=talker.codec_nothink_id,
            think_bos=talker.codec_think_bos_id,
            think_eos=talker.codec_think_eos_id,
            pad=talker.codec_pad_id,
            bos=talker.codec_bos_id,
            eos=talker.codec_eos_token_id,
        )


@dataclass(slots=True)
class Layout:
    """A prompt as columns of ids.

    ``text`` and ``codec`` are columns of equal length. ``None`` in the codec's column is an empty cell or a cell
    without a mark: the row ``speaker_at`` holds the voice's embedding, if a clip gives one, and ``frames`` rows from
    ``frames_at`` on hold the clip's frames. ``beside`` is the text of the frames to come, one piece for each."""

    text: list[int] = field(default_factory=list)
    codec: list[int | None] = field(default_factory=list)
    speaker_at: int | None = None
    frames_at: int = 0
    frames: int = 0
    beside: list[int] = field(default_factory=list)

    def put(self, text: Sequence[int], codec: Sequence[int | None]) -> None:
        """More rows: the columns must be of one length."""
        self.text += text
        self.codec += codec
        assert len(self.text) == len(self.codec)


@dataclass(frozen=True, slots=True)
class Asked:
    """The text to be spoken, as ids of the text's vocabulary, and the manner of speaking.

    ``speaker`` is a voice's id in the codec's vocabulary; with ``cloned`` the voice's embedding comes from a clip
    instead; with neither the model chooses. ``language`` is an id in the codec's vocabulary; with ``None`` the model
    detects the language. ``clip_text`` and ``clip_frames`` are the content of a clip to continue from. With ``whole``
    the prompt holds the whole text.
    """

    head: Sequence[int]
    text: Sequence[int]
    whole: bool
    language: int | None = None
    speaker: int | None = None
    cloned: bool = False
    instructions: Sequence[int] = ()
    clip_text: Sequence[int] | None = None
    clip_frames: int = 0


def lay_out(marks: Marks, asked: Asked) -> Layout:
    """The prompt's rows, and the text beside the frames to come."""
    made = Layout()
    nothing: list[int | None] = [None] * (len(asked.instructions) + len(asked.head))
    made.put([*asked.instructions, *asked.head], nothing)
    tags: list[int | None] = [marks.nothink, marks.think_bos, marks.think_eos]
    if asked.language is not None:
        tags = [marks.think, marks.think_bos, asked.language, marks.think_eos]
    if asked.cloned:
        made.speaker_at = len(made.codec) + len(tags)
    voice: list[int | None] = [asked.speaker] if asked.cloned or asked.speaker is not None else []
    made.put([marks.text_pad] * (len(tags) + len(voice)) + [marks.text_bos], [*tags, *voice, marks.pad])
    text = [*asked.text, marks.text_eos]
    if asked.clip_text is not None:
        _go_on(made, marks, [*asked.clip_text, *text], asked)
    elif asked.whole:
        made.put(text, [marks.pad] * len(text))
        made.put([marks.text_pad], [marks.bos])
    else:
        made.put(text[:1], [marks.bos])
        made.beside = text[1:]
    return made


def _go_on(made: Layout, marks: Marks, text: Sequence[int], asked: Asked) -> None:
    """Add the clip's frames behind a begin mark, and the clip's text with the text to be spoken before or beside the
    frames."""
    codec: list[int | None] = [marks.bos, *([None] * asked.clip_frames)]
    if asked.whole:
        made.put(text, [marks.pad] * len(text))
        text = ()
    made.frames_at, made.frames = len(made.codec) + 1, asked.clip_frames
    filled = [*text, *([marks.text_pad] * (len(codec) - len(text)))]
    made.put(filled[: len(codec)], codec)
    made.beside = filled[len(codec) :]


def tokens_of(encode: Callable[[str], list[int]], text: str, instructions: str | None) -> tuple[list[int], ...]:
    """Return ids of the turn's head, of the text, and of the instructions' turn. White space around the text is
    removed: white space could become one token together with the line break of the head."""
    written = encode(INSTRUCTIONS.format(instructions)) if instructions else []
    return encode(HEAD), encode(text.strip()), written
