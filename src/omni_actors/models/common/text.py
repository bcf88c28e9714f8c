"""Shared parts of families that read and write text: the tokenizer, and the recommendations of the model's makers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, GenerationConfig

from omni_actors.models.common.chat import Chat, check_templates, read_template, reserved_variables
from omni_actors.protocol.errors import ErrorInfo, OmniError, invalid_request
from omni_actors.protocol.params import Prompt
from omni_actors.worker.engines.autoregressive.detokenize import Vocabulary

_SAMPLING_FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


_TOKENIZER_FILES = (
    "tokenizer.json",
    "tekken.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "vocab.json",
    "vocab.txt",
)
"""Files that hold a vocabulary: transformers makes an empty tokenizer of a folder without such a file."""


class Text:
    """A model folder's tokenizer and chat template, with the options
    :data:`~omni_actors.models.common.chat_options.CHAT_OPTIONS`. Raises :class:`OmniError` (500) for a folder without a
    fast tokenizer, and for a chat template that is unreadable or has a syntax error."""

    def __init__(self, folder: str | Path, options: Mapping[str, Any] | None = None) -> None:
        options = options or {}
        self.tokenizer = _tokenizer(Path(folder))
        source = options.get("chat_template")
        if source is not None:
            self.tokenizer.chat_template = read_template(source)
        check_templates(self.tokenizer, str(source or folder))
        self._chat = Chat(self.tokenizer, allow_control_tokens=bool(options.get("allow_control_tokens")))
        self.vocabulary = Vocabulary(self.tokenizer.backend_tokenizer)
        self._longest = max(map(len, self.tokenizer.get_vocab()))
        self._marks = marks_of(self.tokenizer)

    @property
    def chats(self) -> bool:
        """Whether there is a chat template."""
        return self.tokenizer.chat_template is not None

    @property
    def facts(self) -> dict[str, Any]:
        """Return facts for the serving process, which can refuse a chat by them before its media are decoded: see
        :func:`~omni_actors.orchestrator.known.check_known`."""
        return {
            "chat": self.chats,
            "longest_token": self._longest,
            "reserved_variables": sorted(reserved_variables(self.tokenizer)),
        }

    def check_length(self, length: int, most: int, param: str) -> None:
        """Raise 400 for a text of so many characters that it could not fit into ``most`` tokens even if all were
        longest tokens: encoding megabytes takes seconds, and every other request of this worker would wait."""
        if length > most * self._longest:
            raise invalid_request(
                f"This model's maximum context length is {most} tokens; the prompt's {length} characters cannot fit.",
                param=param,
                code="context_length_exceeded",
            )

    def check_prompt(self, prompt: Prompt, most: int) -> None:
        """Apply :meth:`check_length` to a prompt's text, or to all of its messages together."""
        if prompt.text is not None:
            self.check_length(len(prompt.text), most, "prompt")
        length = 0
        for message in prompt.messages or ():
            content = message.get("content")
            for part in content if isinstance(content, list) else [{"text": content}]:
                length += len(part.get("text") or "")
        self.check_length(length, most, "messages")

    def encode_chat(self, prompt: Prompt, messages: list[dict[str, Any]], most: int | None = None) -> list[int]:
        """Return the token ids of a chat, by the chat template, which writes the special tokens itself: the ids of the
        reference, except that no text of the messages becomes a control token. Applies :meth:`check_length` with
        ``most``."""
        text = self._chat.render(prompt, messages)
        if most is not None:
            self.check_length(len(text), most, "messages")
        return self._chat.encode(prompt, messages, text)

    def encode_words(self, text: str, most: int, param: str) -> list[int]:
        """Return the token ids of a text without control tokens, after :meth:`check_length`."""
        self.check_length(len(text), most, param)
        return self._chat.encode_words(text)

    def check_words(self, text: str, param: str) -> None:
        """Raise 400 for a text to be spoken that holds marks: see :func:`check_marks`."""
        check_marks(text, self._marks, param)

    def encode(self, text: str, most: int, param: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return token ids, after :meth:`check_length`."""
        self.check_length(len(text), most, param)
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return ids


def _tokenizer(folder: Path) -> Any:
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES) and not any(folder.glob("*.tiktoken")):
        known = ", ".join(_TOKENIZER_FILES)
        raise _bad(f"the folder {folder} has no tokenizer: none of the files {known} is in it")
    try:
        found = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        raise _bad(f"the tokenizer of {folder} cannot be loaded: {error}") from error
    if not found.is_fast:
        raise _bad(f"the tokenizer of {folder} cannot be used: there is no tokenizer.json")
    return found


def _bad(message: str) -> OmniError:
    return OmniError(ErrorInfo(message=message, code="bad_model", status=500))


def marks_of(tokenizer: Any) -> tuple[str, ...]:
    """Return a tokenizer's special tokens as text."""
    added = [str(it) for it in tokenizer.added_tokens_decoder.values() if it.special]
    return tuple(dict.fromkeys([*added, *tokenizer.all_special_tokens]))


def check_marks(text: str, marks: Iterable[str], param: str) -> None:
    """Raise 400 for a text to be spoken that holds one of these marks: marks are not words, but ends and places of
    sound."""
    if found := next((mark for mark in marks if mark in text), None):
        raise invalid_request(f"The text holds {found!r}, which is a mark of this model's own.", param=param)


def check_token_ids(ids: Sequence[int], vocab_size: int) -> list[int]:
    """Return the same ids, as a list. Raises 400 for an id that the model does not have."""
    if bad := [t for t in ids if not 0 <= t < vocab_size]:
        raise invalid_request(f"Token id {bad[0]} is not below {vocab_size}.", param="prompt")
    return list(ids)


def eos_ids(generation: GenerationConfig, config: Any, tokenizer: Any) -> frozenset[int]:
    """Return the ids that end an answer: the generation config's, else the model's, and the tokenizer's own."""
    found = generation.eos_token_id
    if found is None:
        found = getattr(config, "eos_token_id", None)
    ids = as_ids(found)
    if tokenizer.eos_token_id is not None:
        ids.append(tokenizer.eos_token_id)
    return frozenset(ids)


def as_ids(found: int | Iterable[int] | None) -> list[int]:
    """Return a config's one id, list of ids, or nothing, as a list."""
    return [found] if isinstance(found, int) else list(found or ())


def sampling_defaults(generation: GenerationConfig) -> dict[str, Any]:
    """Return the recommendations of the model's makers. A config that does not sample recommends nothing, as in
    vLLM."""
    given = generation.to_diff_dict()
    return {name: given[name] for name in _SAMPLING_FIELDS if given.get(name) is not None}


def context_length(made_for: int | None, wanted: int | None) -> int:
    """Return the context to serve: ``wanted`` by the deploy file, else the model's own. Raises :class:`OmniError` (500)
    when neither is known, or when more is wanted than the model has."""
    if wanted is None:
        if made_for is None:
            raise OmniError(ErrorInfo(message="the model names no context length: set max_model_len", status=500))
        return int(made_for)
    if made_for is not None and wanted > made_for:
        raise OmniError(
            ErrorInfo(message=f"max_model_len is {wanted}; the model was made for {made_for} tokens", status=500)
        )
    return int(wanted)
