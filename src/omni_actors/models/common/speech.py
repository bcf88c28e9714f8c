"""Shared parts of speech models: an utterance, the stage that makes it frame by frame, and repeatable draws.

A :class:`Talker` runs the autoregressive part of a speech model: an iterator yields its frames (codes or latents), each
computed in a step of its own. So requests take turns frame by frame, the codec gets each frame as it is made, and an
abort ends the work between two frames.
"""

from __future__ import annotations

import hashlib
import logging
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import soxr
import torch
from transformers.utils import logging as transformers_logging

from omni_actors.connectors.payload import Payload
from omni_actors.models.common.load import load_part
from omni_actors.models.common.text import check_marks, marks_of
from omni_actors.platforms.runtime.kernels import Kernels
from omni_actors.protocol.errors import OmniError, invalid_request
from omni_actors.protocol.frames import Hello
from omni_actors.protocol.params import Sampling, Speech
from omni_actors.protocol.request import Usage
from omni_actors.worker.byte_cache import ByteCache
from omni_actors.worker.checks import OutputError
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.autoregressive.sampling import SamplingParams, SamplingState, resolve, sample
from omni_actors.worker.engines.oneshot.adapter import GenerationAdapter
from omni_actors.worker.engines.oneshot.outputs import Piece, Result

log = logging.getLogger(__name__)

REFERENCE = "reference"
"""The port on which clips of the voice to speak with come, one payload a clip."""

LANGUAGES = {"en": "english", "zh": "chinese"}
"""Codes → names: requests may have either."""

BREAK = "break"
"""Metadata key of a payload without frames: for the codec, frames behind it are unrelated to frames before it."""

Frames = np.ndarray[Any, Any]
Samples = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True, slots=True)
class Clip:
    """Mono float32 [n] at ``rate`` Hz."""

    samples: Samples
    rate: int

    def at(self, rate: int) -> Samples:
        """Return the clip at another rate."""
        if rate == self.rate:
            return self.samples
        return np.asarray(soxr.resample(self.samples, self.rate, rate), np.float32)


@dataclass(slots=True)
class Utterance:
    """One request's state: the text and manner of speaking, and the clips of the voice that have arrived."""

    work: Work
    speech: Speech
    references: list[Clip] = field(default_factory=list)

    @property
    def text(self) -> str:
        return self.speech.text or ""


class Talker(GenerationAdapter[Utterance, Utterance]):
    """The stage that makes frames. A family implements :meth:`start` (load), :meth:`check` and :meth:`speak`.

    Options: ``max_characters`` bounds the text, ``max_reference_s`` a clip, ``clip_cache_mib`` the cache of clips.
    """

    frames: ClassVar[str]
    """The kind of the payloads and the name of their one tensor, [frames, width]."""

    languages: ClassVar[tuple[str, ...]] = ()
    """Codes of the languages that the model speaks, if its pipeline declares them."""

    _known: KnownClips | None = None
    _marks: tuple[str, ...] = ()

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        prepare_torch(self.hello)
        progress("loading the model", None)
        return self.start(folder_of(self.hello))

    @abstractmethod
    def start(self, folder: Path) -> dict[str, Any]:
        """Load the model, and return facts for the serving process."""

    def keep_marks(self, tokenizer: Any) -> None:
        """Refuse texts with special tokens of the tokenizer."""
        self._marks = marks_of(tokenizer)

    def know_clips(self, codec: Any) -> None:
        """Cache the codec's encoding of clips, so that a repeated clip is encoded only once."""
        self._known = KnownClips(codec.encode, int(self.hello.options["clip_cache_mib"]) << 20)
        codec.encode = self._known

    def counters(self) -> dict[str, float]:
        if self._known is None:
            return {}
        cache = self._known.cache
        return {
            "clip_hits_total": cache.hits,
            "clip_misses_total": cache.misses,
            "clip_evictions_total": cache.evictions,
        }

    def check(self, utterance: Utterance) -> None:
        """Raise :class:`OmniError` (400 with ``param``) for a request that this model cannot speak."""

    @abstractmethod
    def speak(self, utterance: Utterance) -> Iterator[Frames | Usage | None]:
        """Yield the utterance's frames in order, [n, width], each computed in a step of its own. Usages may come
        between, and ``None`` where the next frames begin anew."""

    def open(self, work: Work) -> tuple[Utterance, Sequence[Utterance]]:
        speech: Speech = work.params.get("speech") or Speech()
        utterance = Utterance(work, speech)
        if not utterance.text.strip():
            raise invalid_request("There is no text to say.", param="input")
        for text, param in (
            (utterance.text, "input"),
            (speech.ref_text, "ref_text"),
            (speech.instructions, "instructions"),
        ):
            self._check_text(text or "", param)
        self._check_language(speech.language)
        self.check(utterance)
        return utterance, () if REFERENCE in work.ports else (utterance,)

    def _check_text(self, text: str, param: str) -> None:
        most = int(self.hello.options["max_characters"])
        if len(text) > most:
            raise invalid_request(f"The text has {len(text)} characters; at most {most} are allowed.", param=param)
        check_marks(text, self._marks, param)

    def _check_language(self, language: str | None) -> None:
        asked = (language or "auto").lower().replace("_", "-").split("-")[0]
        known = {name for code in self.languages for name in (code, LANGUAGES[code])}
        if known and asked not in known | {"auto"}:
            raise invalid_request(f"This model speaks {', '.join(sorted(known))}, not {language!r}.", param="language")

    def feed(self, state: Utterance, port: str, payload: Payload | None, end: bool) -> Sequence[Utterance]:
        if payload is not None:
            clip = Clip(payload.tensors["samples"], int(payload.meta["sample_rate"]))
            most = float(self.hello.options["max_reference_s"])
            if len(clip.samples) > most * clip.rate:
                raise invalid_request(
                    f"The reference is {len(clip.samples) / clip.rate:.0f} s long; at most {most:g} s are allowed.",
                    param="ref_audio",
                )
            state.references.append(clip)
        return (state,) if end else ()

    def run(self, items: Sequence[Utterance]) -> Sequence[Result | OmniError]:
        return [Result(self._pieces(item)) for item in items]

    def _pieces(self, utterance: Utterance) -> Iterator[Piece]:
        for made in self.speak(utterance):
            if isinstance(made, Usage):
                yield Piece(usage=made)
            elif made is None:
                yield Piece(Payload(self.frames, {BREAK: True}))
            else:
                yield replace(self.piece(utterance, made), usage=Usage(completion_tokens=len(made)))

    def piece(self, utterance: Utterance, frames: Frames) -> Piece:
        """Return frames in the form for the codec."""
        return Piece(Payload(self.frames, {}, {self.frames: np.ascontiguousarray(frames)}))


class KnownClips:
    """A replacement for a codec's ``encode`` with a cache of ``most_bytes``. A clip of 30 s takes seconds to encode,
    and a user's voice comes with each request."""

    def __init__(self, encode: Callable[..., Any], most_bytes: int) -> None:
        self._encode = encode
        self.cache: ByteCache[bytes, Any] = ByteCache(most_bytes)

    def __call__(self, *inputs: Any, **settings: Any) -> Any:
        digest = hashlib.blake2b(digest_size=16)
        for part in (*inputs, *sorted(settings.items())):
            name, value = part if isinstance(part, tuple) else ("", part)
            if isinstance(value, torch.Tensor):
                digest.update(f"{name}{value.dtype}{tuple(value.shape)}".encode())
                digest.update(value.detach().to("cpu").contiguous().view(torch.uint8).numpy().tobytes())
            else:
                digest.update(f"{name}{value!r}".encode())
        key = digest.digest()
        made = self.cache.get(key)
        if made is None:
            made = self._encode(*inputs, **settings)
            self.cache.put(key, made, sum(it.nbytes for it in made.values() if isinstance(it, torch.Tensor)))
        return made


class Codes:
    """A sampler of codes, for one row of logits or for several at once. A draw depends on (seed, name, row, place)
    alone, so an utterance repeats with its seed whatever runs beside it."""

    def __init__(self, choosing: SamplingParams, name: str, kernels: Kernels, rows: int = 1) -> None:
        self._kernels = kernels
        self._rows = [SamplingState(choosing, stage=name, choice=row) for row in range(rows)]

    def choose(self, logits: torch.Tensor) -> int:
        """Return the next code, by its logits [vocabulary]. Raises :class:`OutputError` if the logits are not
        finite."""
        return self.choose_rows(logits.reshape(1, -1))[0]

    def choose_rows(self, logits: torch.Tensor) -> list[int]:
        """Return the next code of each row, by their logits [rows, vocabulary]. Raises as :meth:`choose` does."""
        chosen = sample(logits.to(torch.float32, copy=True), self._rows, _no_bytes, self._kernels)
        if chosen.broken:
            raise OutputError("logits are not finite")
        for row, code in zip(self._rows, chosen.token_ids, strict=True):
            row.append(code)
        return chosen.token_ids


def _no_bytes(token_id: int) -> bytes:
    return b""


def choosing(speech: Speech, options: Mapping[str, Any], advice: Mapping[str, Any]) -> SamplingParams:
    """Return the sampling parameters of codes: the request's ``temperature``, ``top_k`` and ``top_p``, else the
    deployment's, else the recommendation of the model's makers (see :func:`recommended`): greedy, if they do not
    sample."""
    made = dict(advice)
    if not made.get("do_sample"):
        made["temperature"] = 0.0
    sampling = Sampling(seed=speech.seed, temperature=speech.temperature, top_k=speech.top_k, top_p=speech.top_p)
    return resolve(sampling, options, made)


def recommended(generation_config: Any) -> dict[str, Any]:
    """Return the recommendation of the model's makers, with the settings that only the family knows."""
    return {name: value for name, value in generation_config.to_dict().items() if value is not None}


def asked_frames(speech: Speech, options: Mapping[str, Any]) -> int | None:
    """Return the limit of an utterance's frames from the request or the deployment, if there is one."""
    return min((bound for bound in (speech.max_tokens, options["max_frames"]) if bound is not None), default=None)


def most_frames(speech: Speech, options: Mapping[str, Any], advised: int | None, room: int) -> int:
    """Return the limit of an utterance's frames: the request's, else the deployment's, else the makers', as far as
    there is room. Raises :class:`OmniError` (400) when there is no room."""
    if room < 1:
        raise invalid_request("The text and its reference leave no room for speech.", param="input")
    return min(asked_frames(speech, options) or advised or room, room)


def noise(shape: Sequence[int], seed: int, name: str, place: int) -> torch.Tensor:
    """Return standard normal float32 numbers that are a function of (seed, name, place) alone."""
    key = (seed % (1 << 64)).to_bytes(8, "little") + place.to_bytes(8, "little")
    digest = hashlib.blake2b(name.encode(), digest_size=8, key=key).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
    return torch.randn(tuple(shape), generator=generator)


def folder_of(hello: Hello) -> Path:
    assert hello.model is not None
    return Path(hello.model)


def prepare_torch(hello: Hello) -> None:
    torch.set_num_threads(hello.threads)
    transformers_logging.disable_progress_bar()  # nobody reads it here


def load_model(model_class: Any, hello: Hello, folder: Path | None = None, **settings: Any) -> Any:
    """Return a transformers model of the folder, in the stage's dtype on its device, ready for inference. Weights
    missing in the folder are a warning: they are random."""
    folder = folder or folder_of(hello)
    dtype = getattr(torch, hello.dtype)
    model, report = model_class.from_pretrained(
        folder, dtype=dtype, local_files_only=True, output_loading_info=True, **settings
    )
    if missing := sorted(report["missing_keys"]):
        log.warning("%s: %d weights are missing and random now, such as %s", folder, len(missing), missing[:3])
    return model.to(hello.device).eval()


def part(model_class: Any, hello: Hello, prefix: str, config: Any) -> Any:
    """Return a model that is one part of the folder's: see :func:`omni_actors.models.common.load.load_part`."""
    return load_part(model_class, config, folder_of(hello), prefix, getattr(torch, hello.dtype), hello.device)
