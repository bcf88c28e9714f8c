"""The incremental detokenizer against the tokenizer's own decoding, and the stop matcher against a plain search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from omni_actors.models.weights import demo_folder
from omni_actors.worker.engines.autoregressive.detokenize import StopStrings, TextStream, Vocabulary

CORPUS = [
    "The quick brown fox jumps over the lazy dog. It's the dog's day!",
    "naïve café Zürich ☃ 😀 👩‍👩‍👧 e\u0301 日本語 हिन्दी",
    "    indented\n\n\ttabs  and   spaces",
]


@cache
def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, special_tokens=["<|end|>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens(["<tool>", "ünï code", "naïf", "▁odd"])
    tokenizer.add_special_tokens([AddedToken("<|stårt|>", special=True)])
    return tokenizer


@cache
def byte_fallback() -> Tokenizer:
    """As sentencepiece models of the Llama kind decode."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    pieces += ["▁", "▁the", "▁do", "g", "s", "▁▁", "e", "\u0301", "日", "本", ".", "\n"]
    tokenizer = Tokenizer(models.BPE({p: i for i, p in enumerate(pieces)}, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


@cache
def unigram() -> Tokenizer:
    """As T5's: a space before the first word is none."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=90, special_tokens=["<unk>", "</s>"], unk_token="<unk>")
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


@cache
def word_piece() -> Tokenizer:
    pieces = ["[UNK]", "[SEP]", "do", "##g", "##s", "the", ".", "n't", "'s", "日", "##本"]
    tokenizer = Tokenizer(models.WordPiece({p: i for i, p in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(["[SEP]"])
    return tokenizer


@cache
def llm() -> Tokenizer:
    return Tokenizer.from_file(str(demo_folder() / "llm" / "tokenizer.json"))


BUILT = [byte_level, byte_fallback, unigram, word_piece]
TOKENIZERS = [*BUILT, pytest.param(llm, marks=pytest.mark.weights)]


def token_id(tokenizer: Tokenizer, token: str) -> int:
    found = tokenizer.token_to_id(token)
    assert found is not None
    return found


def run(stream: TextStream, ids: Sequence[int]) -> list[str]:
    return [*(stream.push(i) for i in ids), stream.finish()]


def some_ids(tokenizer: Tokenizer) -> st.SearchStrategy[list[int]]:
    """Any ids, with known ones more often than unknown ones, and bytes of characters more often than noise."""
    size = tokenizer.get_vocab_size()
    encoded = [tokenizer.encode(text, add_special_tokens=False).ids for text in CORPUS]
    any_id = st.integers(0, size + 2).map(lambda i: [i])
    cut = st.sampled_from(encoded).flatmap(
        lambda ids: st.tuples(st.integers(0, len(ids)), st.integers(1, 12)).map(lambda p: ids[p[0] : p[0] + p[1]])
    )
    return st.lists(any_id | cut, max_size=12).map(lambda parts: [i for part in parts for i in part])


@pytest.mark.parametrize("make", TOKENIZERS)
@pytest.mark.parametrize("skip", [True, False])
def test_pieces_joined_are_the_whole_decoding(
    make: Callable[[], Tokenizer], skip: bool, request: pytest.FixtureRequest
) -> None:
    if make is llm:
        request.getfixturevalue("demo_weights")
    tokenizer = make()
    vocabulary = Vocabulary(tokenizer)

    @settings(max_examples=150, deadline=None)
    @given(some_ids(tokenizer))
    def check(ids: list[int]) -> None:
        stream = TextStream(vocabulary, skip_special_tokens=skip)
        pieces = run(stream, ids)
        whole = tokenizer.decode(ids, skip_special_tokens=skip)
        assert "".join(pieces) == whole
        assert stream.released_tokens == len(ids)
        assert stream.stopped is None

    check()


@pytest.mark.parametrize("make", BUILT)
def test_what_is_out_is_never_taken_back_and_tokens_count_once_their_text_is_out(make: Callable[[], Tokenizer]) -> None:
    tokenizer = make()
    vocabulary = Vocabulary(tokenizer)

    @settings(max_examples=120, deadline=None)
    @given(some_ids(tokenizer))
    def check(ids: list[int]) -> None:
        stream = TextStream(vocabulary)
        out, released = "", 0
        for count, i in enumerate(ids, 1):
            out += stream.push(i)
            assert released <= stream.released_tokens <= count
            released = stream.released_tokens
            alone = TextStream(vocabulary)
            assert out.startswith("".join(alone.push(j) for j in ids[:released]))

    check()


@settings(max_examples=120, deadline=None)
@given(st.text(max_size=30))
@example("👩‍👩‍👧😀")
@example("e\u0301\u0301x")
def test_a_character_is_never_cut(text: str) -> None:
    tokenizer = byte_level()
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    pieces = run(TextStream(Vocabulary(tokenizer), skip_special_tokens=False), ids)
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=False)
    assert text.count("\ufffd") == "".join(pieces).count("\ufffd")


def test_text_leaves_with_the_token_that_completes_it() -> None:
    tokenizer = byte_level()
    ids = [token_id(tokenizer, c) for c in ("h", "ð", "Ł", "ĺ", "Ģ", "i")]
    stream = TextStream(Vocabulary(tokenizer))
    assert [stream.push(i) for i in ids] == ["h", "", "", "", "😀", "i"]
    stream = TextStream(Vocabulary(tokenizer))
    released = []
    for i in ids:
        stream.push(i)
        released.append(stream.released_tokens)
    assert released == [1, 1, 1, 1, 5, 6]


def test_a_cut_character_at_the_end_is_replaced() -> None:
    tokenizer = byte_level()
    stream = TextStream(Vocabulary(tokenizer))
    assert stream.push(token_id(tokenizer, "ð")) == ""
    assert stream.finish() == "\ufffd"


def test_a_run_of_fallback_bytes_waits_for_its_end() -> None:
    tokenizer = byte_fallback()
    name = partial(token_id, tokenizer)
    snowman = [name("<0xE2>"), name("<0x98>"), name("<0x83>")]
    stream = TextStream(Vocabulary(tokenizer))
    assert [stream.push(i) for i in [name("▁the"), *snowman, name("▁do")]] == ["the", "", "", "", "☃ do"]
    stream = TextStream(Vocabulary(tokenizer))
    assert run(stream, [*snowman, name("<0xFF>")])[-1] == "\ufffd" * 4


def test_the_prompts_end_decides_about_the_first_space() -> None:
    tokenizer = byte_fallback()
    name = partial(token_id, tokenizer)
    vocabulary = Vocabulary(tokenizer)
    assert TextStream(vocabulary).push(name("▁do")) == "do"
    assert TextStream(vocabulary, context=[name("▁the")]).push(name("▁do")) == " do"
    assert TextStream(vocabulary, context=[name("▁the"), name("</s>"), name("<0xE2>")]).push(name("▁do")) == " do"


@pytest.mark.parametrize(
    ("make", "token", "data"),
    [
        (byte_level, "ð", b"\xf0"),
        (byte_level, "Ġ", b" "),
        (byte_level, "ünï code", "ünï code".encode()),
        (byte_level, "▁odd", "▁odd".encode()),
        (byte_fallback, "<0xF0>", b"\xf0"),
        (byte_fallback, "▁the", b" the"),
        (word_piece, "the", b"the"),
    ],
)
def test_token_bytes(make: Callable[[], Tokenizer], token: str, data: bytes) -> None:
    tokenizer = make()
    assert Vocabulary(tokenizer).token_bytes(token_id(tokenizer, token)) == data
    assert Vocabulary(tokenizer).token_bytes(10**6) == b""


# -- stop strings -----------------------------------------------------------------------------------------------------

FEW = st.text("ab. ☃", max_size=24)
STOPS = st.lists(st.text("ab. ☃", min_size=1, max_size=4), min_size=1, max_size=3)


def first_stop(text: str, stops: Sequence[str]) -> tuple[int, int] | None:
    """Start and end of the stop that is complete first, the longest of those that end there."""
    for end in range(1, len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return end - len(stop), end
    return None


def character_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """One token per byte, the worst way to cut it."""
    alphabet = {bytes([b]): token_id(tokenizer, c) for c, b in _alphabet().items()}
    return [alphabet[bytes([b])] for b in text.encode()]


def _alphabet() -> dict[str, int]:
    tokenizer, vocabulary = byte_level(), Vocabulary(byte_level())
    return {c: vocabulary.token_bytes(token_id(tokenizer, c))[0] for c in pre_tokenizers.ByteLevel.alphabet()}


@settings(max_examples=250, deadline=None)
@given(FEW, STOPS, st.booleans(), st.booleans())
@example("aab", ["ab"], False, True)
@example("abab☃", ["abab.", "b☃"], False, True)
@example("aaab", ["aab", "b"], False, False)
def test_text_ends_at_the_first_stop_and_nothing_of_it_leaks(
    text: str, stops: list[str], include: bool, by_byte: bool
) -> None:
    tokenizer = byte_level()
    ids = character_ids(tokenizer, text) if by_byte else tokenizer.encode(text).ids
    stream = TextStream(Vocabulary(tokenizer), stops=StopStrings(stops), include_stop=include)
    out = ""
    for i in ids:
        out += stream.push(i)
    out += stream.finish()
    found = first_stop(text, stops)
    if found is None:
        assert (stream.stopped, out, stream.released_tokens) == (None, text, len(ids))
        return
    start, end = found
    assert stream.stopped == text[start:end]
    assert out == text[: end if include else start]
    whole = [tokenizer.decode(ids[:n]) for n in range(len(ids) + 1)]
    assert stream.released_tokens <= max(n for n, t in enumerate(whole) if len(t) <= len(out))
    assert stream.push(ids[0]) == ""
    assert stream.finish() == ""


@settings(max_examples=120, deadline=None)
@given(FEW, STOPS)
def test_text_is_held_back_no_longer_than_needed(text: str, stops: list[str]) -> None:
    tokenizer = byte_level()
    stream = TextStream(Vocabulary(tokenizer), stops=StopStrings(stops))
    out, seen = "", ""
    for char in text:
        for i in character_ids(tokenizer, char):
            out += stream.push(i)
        if stream.stopped is not None:
            return
        seen += char
        held = max((n for s in stops for n in range(len(s)) if seen.endswith(s[:n])), default=0)
        assert out == seen[: len(seen) - held]


def test_a_stop_within_the_first_tokens_is_text_and_one_that_straddles_is_a_stop() -> None:
    tokenizer = byte_level()
    ids = character_ids(tokenizer, "a.a.a.b")
    stream = TextStream(Vocabulary(tokenizer), stops=StopStrings(["."]), min_tokens=3)
    assert "".join(stream.push(i) for i in ids) == "a.a"
    assert stream.stopped == "."
    stream = TextStream(Vocabulary(tokenizer), stops=StopStrings([".a."]), min_tokens=3)
    assert "".join(stream.push(i) for i in ids) == "a"
    assert stream.stopped == ".a."


def test_a_stop_does_not_match_what_is_not_shown() -> None:
    tokenizer = byte_level()
    end = token_id(tokenizer, "<|end|>")
    stop = StopStrings(["<|end|>"])
    stream = TextStream(Vocabulary(tokenizer), stops=stop)
    assert stream.push(end) == ""
    assert stream.stopped is None
    stream = TextStream(Vocabulary(tokenizer), stops=stop, skip_special_tokens=False)
    assert stream.push(end) == ""
    assert stream.stopped == "<|end|>"


def test_a_long_stop_costs_no_more_per_token_than_a_short_one() -> None:
    """Steps of the automaton, counted: at most two per character, however often a match begins and breaks off."""
    steps = 0

    class Counting(StopStrings):
        def step(self, node: int, char: str) -> int:
            nonlocal steps
            while node and char not in self.next[node]:
                steps += 1
                node = self.fail[node]
            steps += 1
            return self.next[node].get(char, 0)

    stops = Counting(["a" * 1000 + "b"])
    steps = 0
    stream = TextStream(Vocabulary(byte_level()), stops=stops)
    text = ("a" * 1000 + "c") * 10
    ids = character_ids(byte_level(), text)
    assert "".join(run(stream, ids)) == text
    assert steps <= 2 * len(text)
