"""Twenty-four requests to an omni model: every modality alone and mixed, with and without a system prompt, in all
voices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.models.omni.line import Ask
from tests.models.omni.media import Given, audio, image, video

from omni_actors.protocol.params import Prompt, Speech

TOKENS, FRAMES = 10, 16

SYSTEM = "You are a helpful robot. Answer in a few words, please."


@dataclass(frozen=True, eq=False)
class Case:
    """``messages`` name ``given`` by index, in order."""

    name: str
    messages: list[dict[str, Any]]
    given: Sequence[Given]
    voice: str

    def ask(self, **speech: Any) -> Ask:
        """Greedy, text and sound."""
        said = Speech(voice=self.voice, max_tokens=FRAMES, temperature=0.0, **speech)
        return Ask(Prompt(messages=self.messages), [it.payload(i) for i, it in enumerate(self.given)], TOKENS, said)


# Clips of one request are equally long: Qwen3-Omni's processor pads several to the longest, and the padding's edge is
# heard.
_MEDIA: dict[str, list[Given]] = {
    "text": [],
    "short text": [],
    "long text": [],
    "image": [image(70, 100)],
    "large image": [image(400, 300, 1)],
    "audio": [audio(2.0)],
    "short audio": [audio(0.3, 1)],
    "long audio": [audio(9.5, 2)],
    "video": [video(4, 60, 90)],
    "odd video": [video(5, 120, 64, 1)],
    "video with sound": [video(4, 60, 90, 2, sound=2.0)],
    "video with little sound": [video(6, 64, 64, 3, sound=0.5)],
    "video with much sound": [video(2, 64, 64, 4, sound=4.0)],
    "two images": [image(64, 64, 3), image(100, 50, 4)],
    "two clips": [audio(1.5, 3), audio(1.5, 4)],
    "two videos": [video(2, 64, 64, 5), video(3, 64, 64, 6)],
    "image, audio": [image(80, 80, 5), audio(1.2, 5)],
    "audio, image": [audio(1.2, 6), image(80, 80, 6)],
    "audio, video": [audio(1.2, 7), video(3, 64, 64, 7)],
    "image, video, audio": [image(70, 70, 7), video(3, 60, 60, 8), audio(1.2, 8)],
    "image, video with sound": [image(64, 64, 8), video(4, 64, 64, 9, sound=2.0)],
    "video with sound, image": [video(4, 64, 64, 10, sound=2.0), image(64, 64, 9)],
    "audio, video with sound": [audio(2.0, 9), video(4, 64, 64, 11, sound=2.0)],
    "two videos with sound": [video(3, 64, 64, 12, sound=1.0), video(2, 64, 64, 13, sound=1.0)],
}

_WORDS = {
    "text": "Hello robot, describe the sea.",
    "short text": "Hi",
    "long text": "Tell me the story of the old man and the river, from the first word to the last. " * 6,
}


def cases(voices: Sequence[str]) -> list[Case]:
    """All of them. The voices take turns."""
    return [
        _case(number, name, given, voices[number % len(voices)]) for number, (name, given) in enumerate(_MEDIA.items())
    ]


def _case(number: int, name: str, given: list[Given], voice: str) -> Case:
    parts: list[dict[str, Any]] = [{"type": it.modality, "index": index} for index, it in enumerate(given)]
    parts.insert(len(parts) // 2, {"type": "text", "text": _WORDS.get(name, "Look and listen.")})
    messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}] if number % 2 else []
    if number % 3 == 0 and len(parts) > 1:  # a conversation of two turns
        messages += [{"role": "user", "content": parts[:1]}, {"role": "assistant", "content": "I see. What of it?"}]
        parts = [*parts[1:], {"type": "text", "text": "What is this?"}]
    return Case(name, [*messages, {"role": "user", "content": parts}], given, voice)
