"""The talker's prompt, row by row."""

from __future__ import annotations

from dataclasses import replace

from omni_actors.models.qwen3_tts.prompt import Asked, Layout, Marks, lay_out, tokens_of

MARKS = Marks(
    text_bos=1, text_eos=2, text_pad=3, think=10, nothink=11, think_bos=12, think_eos=13, pad=14, bos=15, eos=16
)
PLAIN = Asked(head=[100, 101, 102], text=[200, 201, 202], whole=False)
NOTHING = [None, None, None]


def rows(layout: Layout) -> list[tuple[int, int | None]]:
    return list(zip(layout.text, layout.codec, strict=True))


def test_text_comes_with_the_frames() -> None:
    made = lay_out(MARKS, PLAIN)
    assert made.text == [100, 101, 102, 3, 3, 3, 1, 200]
    assert made.codec == [*NOTHING, 11, 12, 13, 14, 15]
    assert made.beside == [201, 202, 2]
    assert (made.speaker_at, made.frames) == (None, 0)


def test_or_the_whole_text_before_them() -> None:
    made = lay_out(MARKS, replace(PLAIN, whole=True))
    assert rows(made)[7:] == [(200, 14), (201, 14), (202, 14), (2, 14), (3, 15)]
    assert made.beside == []


def test_a_language_and_a_voice_are_marks() -> None:
    made = lay_out(MARKS, replace(PLAIN, language=50, speaker=60))
    assert rows(made)[3:] == [(3, 10), (3, 12), (3, 50), (3, 13), (3, 60), (1, 14), (200, 15)]


def test_a_cloned_voice_has_a_place_of_its_own() -> None:
    made = lay_out(MARKS, replace(PLAIN, cloned=True))
    assert rows(made)[3:] == [(3, 11), (3, 12), (3, 13), (3, None), (1, 14), (200, 15)]
    assert made.speaker_at == 6


def test_instructions_come_first_without_marks() -> None:
    made = lay_out(MARKS, replace(PLAIN, instructions=[300, 301]))
    assert rows(made)[:5] == [(300, None), (301, None), (100, None), (101, None), (102, None)]


def test_a_clips_frames_stand_beside_its_text_and_what_is_left_of_it_with_the_frames_to_come() -> None:
    made = lay_out(MARKS, replace(PLAIN, cloned=True, clip_text=[400, 401], clip_frames=2))
    assert rows(made)[8:] == [(400, 15), (401, None), (200, None)]
    assert (made.frames_at, made.frames) == (9, 2)
    assert made.beside == [201, 202, 2]


def test_padding_stands_beside_more_frames_than_text() -> None:
    made = lay_out(MARKS, replace(PLAIN, cloned=True, clip_text=[400], clip_frames=6))
    assert rows(made)[8:] == [(400, 15), (200, None), (201, None), (202, None), (2, None), (3, None), (3, None)]
    assert (made.frames_at, made.frames, made.beside) == (9, 6, [])


def test_a_clip_behind_the_whole_text() -> None:
    made = lay_out(MARKS, replace(PLAIN, whole=True, cloned=True, clip_text=[400], clip_frames=2))
    assert rows(made)[8:] == [(400, 14), (200, 14), (201, 14), (202, 14), (2, 14), (3, 15), (3, None), (3, None)]
    assert (made.frames_at, made.frames, made.beside) == (14, 2, [])


def test_white_space_around_a_text_is_not_said() -> None:
    def encode(text: str) -> list[int]:
        return list(text.encode())

    head, text, instructions = tokens_of(encode, "\n\n Hello \n", "slow")
    assert bytes(head) == b"<|im_start|>assistant\n"
    assert bytes(text) == b"Hello"
    assert bytes(instructions) == b"<|im_start|>user\nslow<|im_end|>\n"
    assert tokens_of(encode, "Hello", None)[2] == []
