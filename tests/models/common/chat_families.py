"""Tiny tokenizers with the control tokens of public families of models, and chat templates of their kinds."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE, Unigram, WordLevel
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

from omni_actors.models.tiny.text import TEXT

CHATML = """{%- for message in messages %}{%- if loop.first and message.role != 'system' %}
{{- '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}{%- endif %}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

QWEN3 = """{%- if tools %}{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- "# Tools\\n<tools>" }}{%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
{{- "\\n</tools>\\nAnswer with <tool_call></tool_call>.<|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{%- endif %}
{%- set ns = namespace(last=messages|length - 1) %}
{%- for message in messages %}
{%- set content = message.content if message.content is string else '' %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
{{- '<|im_start|>' ~ message.role ~ '\\n' ~ content ~ '<|im_end|>' ~ '\\n' }}
{%- elif message.role == 'assistant' %}
{%- set reasoning = '' %}
{%- if message.reasoning_content is string %}{%- set reasoning = message.reasoning_content %}
{%- elif '</think>' in content %}
{%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}
{{- '<|im_start|>assistant\\n' }}
{%- if loop.last or reasoning %}{{- '<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' }}{%- endif %}
{{- content.lstrip('\\n') }}
{%- for call in message.tool_calls or [] %}
{{- '\\n<tool_call>\\n{"name": "' }}{{- call.function.name }}{{- '", "arguments": ' }}
{{- call.function.arguments | tojson }}{{- '}\\n</tool_call>' }}{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + content + '\\n</tool_response><|im_end|>\\n' }}
{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}
{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}{%- endif %}"""

LLAMA3 = """{{- bos_token }}{%- for message in messages %}
{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"""

MISTRAL = """{{ bos_token }}{% if messages[0].role == 'system' %}{% set system = messages[0].content ~ '\\n\\n' %}
{%- set rest = messages[1:] %}{% else %}{% set system = '' %}{% set rest = messages %}{% endif %}
{%- for message in rest %}{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('roles must alternate') }}{% endif %}{% if message.role == 'user' %}
{{- '[INST] ' + (system if loop.first else '') + message.content.strip() + ' [/INST]' }}
{%- else %}{{ ' ' + message.content.strip() + eos_token }}{% endif %}{% endfor %}"""

GEMMA = """{{ bos_token }}{%- macro text(it) -%}{%- if it is string -%}{{ it | trim }}{%- else -%}{%- for part in it -%}
{{ part['text'] | trim }}{%- endfor -%}{%- endif -%}{%- endmacro -%}
{%- for message in messages -%}{%- set role = 'model' if message.role == 'assistant' else message.role -%}
{{ '<start_of_turn>' + role + '\\n' }}{{ text(message.content) }}{{ '<end_of_turn>\\n' }}{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}"""

PHI3 = """{% for message in messages %}{% if message['role'] == 'system' %}
{{- '<|system|>\\n' + message['content'] + '<|end|>\\n' }}{% elif message['role'] == 'user' %}
{{- '<|user|>\\n' + message['content'] + '<|end|>\\n' }}{% elif message['role'] == 'assistant' %}
{{- '<|assistant|>\\n' + message['content'] + '<|end|>\\n' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}"""

PHI4 = """{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ '<|endoftext|>' }}{% endif %}"""

JOINED = """{% for message in messages %}{% if message.content is string %}
{{- '%s: %s</s>' % (message.role, message.content) }}{% else %}
{{- message.role ~ ': ' ~ message.content | map(attribute='text') | join('') ~ '</s>' }}{% endif %}{% endfor %}"""
"""Texts are formatted, mapped and joined."""


def byte_level(marks: Sequence[str], special: Sequence[str], template: str, **named: str) -> Any:
    """Byte-level BPE, as Qwen, Llama 3 and Phi-4 have it."""
    made = Tokenizer(BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator([" " + word for word in TEXT.split()], trainer)
    return _whole(made, marks, special, template, named)


def sentences(marks: Sequence[str], special: Sequence[str], template: str, *, first: bool = False, **named: str) -> Any:
    """BPE over whole sentences with bytes to fall back to, as Llama 2, Mistral and Gemma have it: the control tokens
    are part of the model's vocabulary. With ``first`` a space is put before the first piece only."""
    trained = Tokenizer(BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trained.train_from_iterator(TEXT.split(), BpeTrainer(vocab_size=300, show_progress=False))
    words = trained.get_vocab()
    vocabulary = {token: at for at, token in enumerate([*marks, *(f"<0x{byte:02X}>" for byte in range(256))])}
    vocabulary |= {token: len(vocabulary) + at for at, token in enumerate(sorted(words.keys() - vocabulary.keys()))}
    merges = [tuple(pair) for pair in json.loads(trained.to_str())["model"]["merges"]]
    made = Tokenizer(BPE(vocabulary, merges, byte_fallback=True, fuse_unk=True, unk_token=marks[0]))
    if first:
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return _whole(made, marks, special, template, named)


def _whole(made: Tokenizer, marks: Sequence[str], special: Sequence[str], template: str, named: dict[str, str]) -> Any:
    rstrip = "rstrip" in named and bool(named.pop("rstrip"))
    made.add_tokens([AddedToken(it, special=it in special, normalized=False, rstrip=rstrip) for it in marks])
    return PreTrainedTokenizerFast(tokenizer_object=made, chat_template=template, **named)


def unigram() -> Any:
    """A unigram model that knows the text of its control tokens as words, and a template that formats texts."""
    letters = [(chr(at), -8.0) for at in range(32, 127)]
    made = Tokenizer(Unigram([("<unk>", 0.0), ("</s>", 0.0), ("▁", -2.0), ("\n", -8.0), *letters], 0, False))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    return _whole(made, ["<unk>", "</s>"], ["<unk>", "</s>"], JOINED, {"eos_token": "</s>", "unk_token": "<unk>"})


def words() -> Any:
    """A word-level model, which has one word for a control token: ``[SEP]`` split at no blank."""
    made = Tokenizer(WordLevel({"[UNK]": 0, "[SEP]": 1, "a": 2}, "[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    template = "{% for m in messages %}{{ m.content }} [SEP] {% endfor %}"
    return _whole(made, ["[UNK]", "[SEP]"], ["[UNK]", "[SEP]"], template, {"unk_token": "[UNK]"})


_CHATML = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_THINK = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
_LLAMA3 = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
_GEMMA = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
_PHI3 = ["<unk>", "<s>", "</s>", "<|endoftext|>", "<|assistant|>", "<|system|>", "<|end|>", "<|user|>"]
_PHI4 = ["<|endoftext|>", "<|end|>", "<|user|>", "<|system|>", "<|assistant|>", "<|tool|>"]

FAMILIES: dict[str, Callable[[], Any]] = {
    "chatml": lambda: byte_level(_CHATML, _CHATML, CHATML, eos_token="<|im_end|>"),
    "qwen3": lambda: byte_level([*_CHATML, *_THINK], _CHATML, QWEN3, eos_token="<|im_end|>"),
    "llama3": lambda: byte_level(_LLAMA3, _LLAMA3, LLAMA3, bos_token="<|begin_of_text|>", eos_token="<|eot_id|>"),
    "mistral": lambda: sentences(
        ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"],
        ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"],
        MISTRAL,
        bos_token="<s>",
        eos_token="</s>",
    ),
    "gemma": lambda: sentences(
        [*_GEMMA, "\n\n", "\n\n\n", "<h1>", "</h1>"], _GEMMA, GEMMA, first=True, bos_token="<bos>", eos_token="<eos>"
    ),
    "phi3": lambda: sentences(_PHI3, _PHI3, PHI3, bos_token="<s>", eos_token="<|endoftext|>", rstrip="yes"),
    "phi4": lambda: byte_level(_PHI4, ["<|endoftext|>"], PHI4, eos_token="<|endoftext|>"),
    "unigram": unigram,
    "words": words,
}
