"""The acoustic stage: a sentence → phonemes → spectra.

The payload, kind ``acoustic``, is the net's output for one sentence (or for a part of a sentence too long for a step):
five spectral tensors float32 [601, frames] and ``f0`` float32 [frames], a frame being 12.5 ms. ``meta`` has ``index``
(its place in the answer), ``seed`` (of the noise that the vocoder adds), ``tempo`` (how many times faster the sound
must still be made) and ``silence``, a pair: the most seconds of silence at its begin and at its end, where a sentence
was cut in two.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from omni_actors.connectors.payload import Payload
from omni_actors.models.omni_demo import voice
from omni_actors.models.omni_demo.cutting import MARKS, cut, taken_apart
from omni_actors.models.omni_demo.pipeline import SAMPLE_RATE, VOICE
from omni_actors.models.omni_demo.sentences import SentenceSplitter
from omni_actors.models.omni_demo.speakable import speakable
from omni_actors.protocol.errors import OmniError, invalid_request
from omni_actors.protocol.frames import Hello
from omni_actors.protocol.params import Speech
from omni_actors.protocol.request import Usage
from omni_actors.worker.checks import Specs, TensorSpec, WarmUpError
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.oneshot.adapter import GenerationAdapter
from omni_actors.worker.engines.oneshot.outputs import Piece, Result

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

MAX_PHONEMES = 120
"""Most phonemes that one step says, at a speed of 1 or more: about 8 s of sound, two ordinary sentences. A sentence
that has more is cut, and its parts take turns with other requests' sentences."""

PAUSE_S = 0.12
"""Silence on either side of a cut behind a mark at which the voice pauses."""

SEAM_S = 0.02
"""Silence on either side of a cut between words."""


@dataclass(slots=True)
class Speaking:
    """The state of one request. ``asked`` says that the text came in the request, so that silence is an error; ``rest``
    is the remainder after the item that just ran."""

    work: Work
    speech: Speech
    asked: bool
    index: int = 0
    rest: Sequence[Line | Part] = ()


@dataclass(frozen=True, slots=True)
class Line:
    """An item: one written sentence of a request, still unread. The step also speaks the sentence's first part."""

    request: Speaking
    text: str


@dataclass(frozen=True, slots=True)
class Part:
    """An item: phonemes of a part of a sentence that is too long for one step. ``silence`` is as in the payload."""

    request: Speaking
    phonemes: str
    silence: tuple[float | None, float | None] = (None, None)


class Acoustic(GenerationAdapter[Speaking, Line | Part]):
    """hibari's net on onnxruntime. It takes one sentence, or part of one, at a time, so a batch is one item."""

    tensors: ClassVar[Specs] = {"acoustic": ACOUSTIC}

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello)
        self._max_characters = int(hello.options.get("max_characters", 16_384))

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        assert self.hello.model is not None
        progress("loading the acoustic net", 0.0)
        self._voice = voice.package(self.hello.model).Hibari(threads=self.hello.threads)
        progress("loading pronunciations", 0.3)
        spectra = self._net(self._voice.g2p("Hello, world."), 1.0)
        if not all(np.isfinite(tensor).all() for tensor in spectra.tensors.values()):
            raise WarmUpError("spectra")
        return {"sample_rate": SAMPLE_RATE, "voices": [VOICE], "languages": ["en"]}

    def open(self, work: Work) -> tuple[Speaking, Sequence[Line | Part]]:
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
                f"The text has {len(speech.text)} characters; at most {self._max_characters} are allowed.",
                param="input",
            )
        splitter = SentenceSplitter(opening_limit=None, skip_code=False)
        return state, [Line(state, sentence) for sentence in splitter.push(speech.text, end=True)]

    def feed(self, state: Speaking, port: str, payload: Payload | None, end: bool) -> Sequence[Line | Part]:
        return () if payload is None else (Line(state, payload.meta["text"]),)

    def batch_key(self, item: Line | Part) -> Hashable:
        return id(item)

    def run(self, items: Sequence[Line | Part]) -> Sequence[Result | OmniError]:
        return [self._say(item) for item in items]

    def finish(self, state: Speaking) -> Sequence[Piece]:
        if state.asked and state.index == 0:
            raise invalid_request("Nothing in this text can be spoken.", param="input")
        return ()

    def more(self, state: Speaking) -> Sequence[Line | Part]:
        following, state.rest = state.rest, ()
        return following

    def _say(self, item: Line | Part) -> Result:
        """Speak one part of a sentence. The remaining parts wait for the request's next turn."""
        state = item.request
        speech = state.speech
        parts = [item] if isinstance(item, Part) else self._parts(item)
        if not parts:
            return Result()
        first, *rest = parts
        meta = {"index": state.index, "seed": speech.seed, "silence": first.silence}
        payload = self._net(first.phonemes, speech.speed, **meta)
        state.index += 1
        state.rest = rest
        return Result([Piece(payload)], Usage(prompt_tokens=len(first.phonemes)))

    def _parts(self, line: Line) -> list[Part]:
        """Cut a sentence into parts that a step can take; no parts if the sentence has no reading."""
        words = taken_apart(speakable(line.text), self._known)
        found = self._voice.g2p(words) if words else ""
        if not any(character.isalpha() for character in found):
            return []
        slowest = min(1.0, max(line.request.speech.speed, NET_SLOWEST))
        phonemes = cut(found, round(MAX_PHONEMES * slowest))
        seams = [None, *(PAUSE_S if it[-1] in MARKS else SEAM_S for it in phonemes[:-1]), None]
        return [Part(line.request, it, edges) for it, edges in zip(phonemes, pairwise(seams), strict=True)]

    def _known(self, word: str) -> bool:
        lexicon = self._voice.g2p.lexicon
        return any(lexicon.is_known(form, None) for form in (word, word.lower()))

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
    """Raise a 400 for a request beyond the voice's abilities."""
    if speech.voice.lower() not in ("default", VOICE):
        raise invalid_request(f"There is no voice {speech.voice!r}; there is: {VOICE}.", param="voice")
    if not SLOWEST <= speech.speed <= FASTEST:
        raise invalid_request(f"speed must be between {SLOWEST} and {FASTEST:g}.", param="speed")
    if speech.instructions:
        raise invalid_request("This voice takes no instructions.", param="instructions")
    language = (speech.language or "en").lower().replace("_", "-").split("-")[0]
    if language not in ("en", "english", "auto"):
        raise invalid_request(f"This voice speaks English, not {speech.language!r}.", param="language")
