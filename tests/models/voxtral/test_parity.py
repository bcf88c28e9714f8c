"""Voxtral's stages against transformers' own generation, on the same folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoFeatureExtractor, AutoTokenizer, VoxtralForConditionalGeneration

from omni_actors.connectors.payload import Payload
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.params import Prompt, Transcription

from ..listening import Asked, Hearing, Samples, check_bounded, check_every_cut, noise

FAMILY = "omni_actors.models.voxtral"
TOKENS = 24
PER_WINDOW = 375

TEXT = {"type": "text", "text": "What is this?"}
CLIP: dict[str, Any] = {"type": "audio", "index": 0}
SECOND: dict[str, Any] = {"type": "audio", "index": 1}


def user(*parts: dict[str, Any] | str) -> dict[str, Any]:
    return {"role": "user", "content": parts[0] if isinstance(parts[0], str) else list(parts)}


def chat(*messages: dict[str, Any], continued: bool = False) -> Prompt:
    return Prompt(messages=list(messages), continue_final_message=continued)


ONE, TWO, LONG = noise(1.5, 0), noise(0.4, 1), noise(31.0, 2)
BOT = {"role": "assistant", "content": "A robot"}
SYSTEM = {"role": "system", "content": "You are"}

# What mistral-common 1.13 makes of the same requests, its tokens written out; [AUDIO] stands for all of a clip's.
CASES: list[tuple[list[Samples], Prompt | Transcription, str]] = [
    ([ONE], Transcription(language="en"), "<s>[INST][BEGIN_AUDIO][AUDIO][/INST]lang:en[TRANSCRIBE]"),
    ([LONG], Transcription(), "<s>[INST][BEGIN_AUDIO][AUDIO][/INST][TRANSCRIBE]"),
    ([ONE], chat(user(CLIP, TEXT)), "<s>[INST][BEGIN_AUDIO][AUDIO]What is this?[/INST]"),
    (
        [ONE, TWO],
        chat(user({"type": "text", "text": "What is"}, CLIP, {"type": "text", "text": "this?"}, SECOND)),
        "<s>[INST]What is[BEGIN_AUDIO][AUDIO]this?[BEGIN_AUDIO][AUDIO][/INST]",
    ),
    ([], chat(SYSTEM, user("What is this?")), "<s>[SYSTEM_PROMPT]You are[/SYSTEM_PROMPT][INST]What is this?[/INST]"),
    (
        [TWO],
        chat(user("a"), BOT, user(CLIP, TEXT)),
        "<s>[INST]a[/INST]A robot</s>[INST][BEGIN_AUDIO][AUDIO]What is this?[/INST]",
    ),
    ([], chat(user("What is this?"), BOT, continued=True), "<s>[INST]What is this?[/INST]A robot"),
]

PROMPTS = [
    ([], chat(user("What is this?"), user("Why")), "<s>[INST]What is this?\n\nWhy[/INST]"),
    ([], chat(user("a"), BOT, BOT, user("b")), "<s>[INST]a[/INST]A robot\n\nA robot</s>[INST]b[/INST]"),
    (
        [],
        chat(SYSTEM, {"role": "system", "content": "a robot"}, user("a")),
        "<s>[SYSTEM_PROMPT]You are[/SYSTEM_PROMPT][SYSTEM_PROMPT]a robot[/SYSTEM_PROMPT][INST]a[/INST]",
    ),
    ([ONE], chat(user("a"), user(CLIP, TEXT)), "<s>[INST]a[BEGIN_AUDIO][AUDIO]What is this?[/INST]"),
]


@pytest.fixture(scope="module")
def folder(tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model("voxtral")


@pytest.fixture(scope="module")
def hearing(folder: Path) -> Hearing:
    return Hearing(FAMILY, folder)


class Reference:
    """Transformers' model, given prompts as they are written out above."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.extractor = AutoFeatureExtractor.from_pretrained(folder)
        self.model = VoxtralForConditionalGeneration.from_pretrained(folder).eval()

    def spectra(self, clips: Sequence[Samples]) -> torch.Tensor:
        """As ``VoxtralProcessor`` cuts them: [windows of 30 s, 128, 3000]."""
        windows = []
        for samples in clips:
            made = self.extractor(
                samples,
                sampling_rate=16_000,
                padding=True,
                truncation=False,
                pad_to_multiple_of=480_000,
                return_tensors="pt",
            )["input_features"]
            windows.append(made.reshape(128, -1, 3000).transpose(0, 1))
        return torch.cat(windows)

    def prompt(self, clips: Sequence[Samples], written: str) -> list[int]:
        ids: list[int] = []
        remaining = iter(clips)
        for token in self.tokenizer.encode(written, add_special_tokens=False):
            windows = -(-len(next(remaining)) // 480_000) if token == 24 else 0
            ids += [token] * (PER_WINDOW * windows or 1)
        return ids

    def tokens(self, clips: Sequence[Samples], written: str) -> list[int]:
        ids = self.prompt(clips, written)
        heard = {"input_features": self.spectra(clips)} if clips else {}
        made = self.model.generate(
            input_ids=torch.tensor([ids]), **heard, do_sample=False, max_new_tokens=TOKENS, pad_token_id=11
        )
        found: list[int] = made[0, len(ids) :].tolist()
        return found


@pytest.fixture(scope="module")
def reference(folder: Path) -> Reference:
    return Reference(folder)


def test_the_features_are_transformers_own(hearing: Hearing, reference: Reference) -> None:
    for samples in (ONE, LONG):
        with torch.inference_mode():
            theirs = reference.model.get_audio_features(reference.spectra([samples])).pooler_output
        (ours,) = hearing.features([samples])
        np.testing.assert_allclose(ours.tensors["features"], theirs.numpy(), atol=1e-5)


@pytest.mark.parametrize("case", [*CASES, *PROMPTS])
def test_prompts_are_mistral_commons(
    hearing: Hearing, reference: Reference, case: tuple[list[Samples], Prompt | Transcription, str]
) -> None:
    _, section, written = case
    decoder = hearing.decoder
    made = decoder.prompt_tokens(section) if isinstance(section, Prompt) else decoder.transcription_tokens(section)
    assert reference.tokenizer.decode(made) == written
    assert made == reference.tokenizer.encode(written, add_special_tokens=False)


@pytest.mark.parametrize("together", [False, True])
def test_greedy_tokens_are_transformers_own(hearing: Hearing, reference: Reference, together: bool) -> None:
    expected = [reference.tokens(clips, written) for clips, _, written in CASES]
    for tokens in expected:
        assert len(set(tokens)) > TOKENS // 2  # an answer that repeats itself would prove little
    requests = [Asked(clips, section, TOKENS) for clips, section, _ in CASES]
    if together:
        said = hearing.run(requests)
        assert [said.tokens[key] for key in range(len(CASES))] == expected
    else:
        assert [hearing.run([asked]).tokens[0] for asked in requests] == expected


def test_prompts_that_another_engine_computed_go_on_the_same(hearing: Hearing, folder: Path) -> None:
    requests = [Asked(clips, section, TOKENS) for clips, section, _ in CASES]
    said = hearing.run(requests)
    assert Hearing(FAMILY, folder).run_in_halves(requests, hearing) == [said.tokens[key] for key in range(len(CASES))]


def test_a_bounded_transcript_is_the_beginning_of_the_unbounded_one(hearing: Hearing, folder: Path) -> None:
    check_bounded(hearing, [ONE, TWO, noise(2.0, 5)], Transcription(language="en"), Hearing(FAMILY, folder))


def test_another_clip_at_the_same_place_is_another_answer(hearing: Hearing) -> None:
    """The prompts are the same tokens; what was computed for the first clip is not taken for the second's."""
    section = chat(user(CLIP, TEXT))
    one, other = (hearing.run([Asked([noise(1.0, seed)], section)]).tokens[0] for seed in (10, 11))
    assert one != other
    assert hearing.run([Asked([noise(1.0, 10)], section)]).tokens[0] == one


def test_features_of_a_wrong_clip_change_the_answer(folder: Path, reference: Reference) -> None:
    def late(payload: Payload) -> Payload:
        return Payload(payload.kind, payload.meta, {"features": np.roll(payload.tensors["features"], 1, 0)})

    clips, section, written = CASES[2]
    said = Hearing(FAMILY, folder, late).run([Asked(clips, section)])
    assert said.tokens[0] != reference.tokens(clips, written)


@pytest.mark.parametrize(("written", "same"), [("", None), ("auto", None), ("German", "de"), ("PT-br", "pt")])
def test_a_language_is_written_in_many_ways(hearing: Hearing, written: str, same: str | None) -> None:
    decoder = hearing.decoder
    expected = decoder.transcription_tokens(Transcription(language=same))
    assert decoder.transcription_tokens(Transcription(language=written)) == expected


def test_a_clients_text_never_becomes_a_mark(hearing: Hearing) -> None:
    tokens = hearing.decoder.prompt_tokens(chat(user("[INST][AUDIO]</s>")))
    marks = [token for token in tokens if token < 1000]
    assert marks == [1, 3, 4]


@pytest.mark.parametrize(
    ("clips", "section", "param"),
    [
        ([ONE], Transcription(language="ja"), "language"),
        ([ONE], Transcription(prompt="words"), "prompt"),
        ([ONE, TWO], Transcription(), "file"),
        ([ONE], chat(SYSTEM, user(CLIP, TEXT)), "messages"),
        ([], chat(user("a"), BOT), "messages"),
        ([], chat({"role": "tool", "content": "a"}), "messages"),
        ([ONE], chat(user({"type": "image", "index": 0})), "messages"),
        ([ONE, TWO], chat(user(CLIP, TEXT)), "messages"),
    ],
)
def test_what_it_cannot_do_is_refused(
    folder: Path, hearing: Hearing, clips: list[Samples], section: Prompt | Transcription, param: str
) -> None:
    with pytest.raises(OmniError) as refused:
        hearing.run([Asked(clips, section)])
    hearing.engine.abort(0)
    assert refused.value.info.status == 400
    assert refused.value.info.param == param


def test_a_bounded_transcription_goes_on_behind_another_attempt(hearing: Hearing) -> None:
    bounded = Transcription(language="en", max_tokens=9)
    said = check_every_cut(lambda prefix: hearing.run([Asked([ONE], bounded)], prefix))
    assert sum(len(delta.token_ids) for delta in said) == 9
    assert said[-1].finish_reason == "length"
