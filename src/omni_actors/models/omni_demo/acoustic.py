"""The acoustic stage: a sentence → phonemes → spectra.

Its payload, kind ``acoustic``, is what the net says of one sentence (or of a part of one that is too long for it): five
spectral tensors float32 [601, frames] and ``f0`` float32 [frames], a frame being 12.5 ms. ``meta`` has ``index`` (its
place in the answer), ``seed`` (of the noise that the vocoder adds) and ``tempo``, how many times faster the sound must
still be made.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from omni_actors.connectors.payload import Payload
from omni_actors.models.omni_demo import voice
from omni_actors.models.omni_demo.pipeline import SAMPLE_RATE, VOICE
from omni_actors.models.omni_demo.sentences import SentenceSplitter
from omni_actors.models.omni_demo.speakable import speakable
from omni_actors.protocol.errors import OmniError, invalid_request
from omni_actors.protocol.frames import Hello
from omni_actors.protocol.params import Speech
from omni_actors.protocol.request import Usage
from omni_actors.worker.checks import Specs, TensorSpec, WarmUpError
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.generation import GenerationAdapter
from omni_actors.worker.engines.outputs import Piece, Result

SPECTRA = ("lh", "theta", "ln", "lr", "phi")
BINS = 601

ACOUSTIC = {
    **{name: TensorSpec("float32", (BINS, None)) for name in SPECTRA},
    "f0": TensorSpec("float32", (None,)),
}
"""The tensors of a sentence."""

SLOWEST, FASTEST = 0.25, 4.0

NET_SLOWEST, NET_FASTEST = 0.5, 1.5
"""Between these speeds the net speaks well; what is beyond is left to the vocoder as ``tempo``."""

MAX_PHONEMES = 400
"""The net's longest sentence in training: what is longer is cut at a clause, or between words."""


@dataclass(slots=True)
class Speaking:
    """One request's state. ``asked`` says that the text came in the request itself, so that silence is an error."""

    work: Work
    speech: Speech
    asked: bool
    index: int = 0


@dataclass(frozen=True, slots=True)
class Line:
    """An item: one written sentence of a request."""

    request: Speaking
    text: str


class Acoustic(GenerationAdapter[Speaking, Line]):
    """hibari's net on onnxruntime. It takes one sentence at a time, so a batch is one item."""

    tensors: ClassVar[Specs] = {"acoustic": ACOUSTIC}

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello)
        self._max_characters = int(hello.options.get("max_characters", 16_384))

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        assert self.hello.model is not None
        progress("loading the acoustic net", 0.0)
        self._voice = voice.package(self.hello.model).Hibari(threads=self.hello.threads)
        progress("loading pronunciations", 0.3)
        spectra = self._net(self._phonemes("Hello, world.")[0], 1.0)
        if not all(np.isfinite(tensor).all() for tensor in spectra.tensors.values()):
            raise WarmUpError("spectra")
        return {"sample_rate": SAMPLE_RATE, "voices": [VOICE], "languages": ["en"]}

    def open(self, work: Work) -> tuple[Speaking, Sequence[Line]]:
        speech: Speech = work.params.get("speech") or Speech()
        _check(speech)
        asked = not work.ports
        state = Speaking(work, speech, asked)
        if not asked:
            return state, ()
        if speech.text is None or not speech.text.strip():
            raise invalid_request("There is no text to say.", param="input")
        if len(speech.text) > self._max_characters:
            raise invalid_request(
                f"The text has {len(speech.text)} characters; the most is {self._max_characters}.", param="input"
            )
        splitter = SentenceSplitter(opening_limit=None, skip_code=False)
        return state, [Line(state, sentence) for sentence in splitter.push(speech.text, end=True)]

    def feed(self, state: Speaking, port: str, payload: Payload | None, end: bool) -> Sequence[Line]:
        return () if payload is None else (Line(state, payload.meta["text"]),)

    def batch_key(self, item: Line) -> Hashable:
        return id(item)

    def run(self, items: Sequence[Line]) -> Sequence[Result | OmniError]:
        return [self._say(item) for item in items]

    def finish(self, state: Speaking) -> Sequence[Piece]:
        if state.asked and state.index == 0:
            raise invalid_request("Nothing in this text can be spoken.", param="input")
        return ()

    def _say(self, line: Line) -> Result:
        state = line.request
        pieces: list[Piece] = []
        tokens = 0
        for phonemes in self._phonemes(line.text):
            tokens += len(phonemes)
            meta = {"index": state.index + len(pieces), "seed": state.speech.seed}
            pieces.append(Piece(self._net(phonemes, state.speech.speed, **meta)))
        state.index += len(pieces)
        return Result(pieces, Usage(prompt_tokens=tokens))

    def _phonemes(self, text: str) -> list[str]:
        """The phonemes of a sentence, in parts that the net can take; none if it has no reading."""
        words = speakable(text)
        found = self._voice.g2p(words) if words else ""
        if not any(character.isalpha() for character in found):
            return []
        parts = []
        while len(found) > MAX_PHONEMES:
            cut = max(found.rfind(mark, 0, MAX_PHONEMES) for mark in (", ", "; ", ": ", "— ")) + 1
            cut = cut or found.rfind(" ", 0, MAX_PHONEMES) + 1 or MAX_PHONEMES
            parts.append(found[:cut].strip())
            found = found[cut:].strip()
        return [*parts, found]

    def _net(self, phonemes: str, speed: float, **meta: Any) -> Payload:
        ids = np.asarray([self._voice.ids(phonemes)], np.int64)
        net = min(max(speed, NET_SLOWEST), NET_FASTEST)
        outputs = self._run(ids, net)
        tempo = 1.0
        if speed > 1.0 or speed < NET_SLOWEST:
            # The net rounds durations to whole frames, so quick speech comes out slower than asked: make up for that.
            wanted = self._run(ids, 1.0, ["f0"])[0].shape[-1] / speed
            tempo = outputs[-1].shape[-1] / wanted
        tensors = {name: value[0] for name, value in zip((*SPECTRA, "f0"), outputs, strict=True)}
        return Payload("acoustic", {**meta, "tempo": tempo}, tensors)

    def _run(self, ids: np.ndarray[Any, Any], speed: float, names: list[str] | None = None) -> list[Any]:
        inputs = {"ids": ids, "speed": np.asarray([speed], np.float32)}
        outputs: list[Any] = self._voice.sess.run(names or [*SPECTRA, "f0"], inputs)
        return outputs


def _check(speech: Speech) -> None:
    """Raise a 400 for what this voice cannot do."""
    if speech.voice.lower() not in ("default", VOICE):
        raise invalid_request(f"There is no voice {speech.voice!r}; there is: {VOICE}.", param="voice")
    if not SLOWEST <= speech.speed <= FASTEST:
        raise invalid_request(f"speed must be between {SLOWEST} and {FASTEST:g}.", param="speed")
    if speech.instructions:
        raise invalid_request("This voice takes no instructions.", param="instructions")
    language = (speech.language or "en").lower().replace("_", "-").split("-")[0]
    if language not in ("en", "english", "auto"):
        raise invalid_request(f"This voice speaks English, not {speech.language!r}.", param="language")
