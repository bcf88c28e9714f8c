"""A small byte-level BPE tokenizer with a family's own special tokens.

The tokenizer has every byte, so that any text can be encoded, and merges learnt from the words below. Words that a
model addresses by id (the chat's roles) are one token each.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from tokenizers import AddedToken, Tokenizer, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import Qwen2Tokenizer

TEXT = """
the of and to in is it you that was for on are with as his they be at one have this from or had by hot but some what
there we can out other were all your when up use word how said an each she which do their time if will way about many
then them would write like so these her long make thing see him two has look more day could go come did my sound no
most number who over know water than call first people may down side been now find any new work part take get place
made live where after back little only round man year came show every good me give our under name very through just
form much great think say help low line before turn cause same mean differ move right boy old too does tell sentence
set three want air well also play small end put home read hand port large spell add even land here must big high such
follow act why ask men change went light kind off need house picture try us again animal point mother world near build
self earth father head stand own page should country found answer school grow study still learn plant cover food sun
four thought let keep eye never last door between city tree cross since hard start might story saw far sea draw left
late run while press close night real life few stop open seem together next white children begin got walk example ease
paper often always music those both mark book letter until mile river car feet care second group carry took rain eat
room friend began idea fish mountain north once base hear horse cut sure watch color face wood main speak voice hello
describe image video audio listen transcribe assistant system user please robot red green blue
"""

ROLES = ("system", "user", "assistant")


def tokenizer(
    specials: Sequence[str], names: Mapping[str, str], *, base: int = 640, plain: Sequence[str] = ()
) -> Qwen2Tokenizer:
    """Return a Qwen2 tokenizer: `base` bytes and merged tokens, then `specials` in order, each one token.

    `names` are the tokenizer's named tokens (``eos_token``, ``audio_token``, …), each of which is among `specials`.
    Members of `specials` in `plain` stay in decoded text. The same call gives the same ids. Raises ValueError when a
    role of a chat is not one token.
    """
    trained = Tokenizer(BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = BpeTrainer(vocab_size=base, initial_alphabet=alphabet, show_progress=False)
    # A role is counted often and alone, as a chat template writes it, so that its merges come first.
    roles = [role for role in ROLES for _ in range(50)]
    trained.train_from_iterator([*roles, *(" " + word for word in TEXT.split())], trainer)
    model = json.loads(trained.to_str())["model"]
    vocabulary: dict[str, int] = model["vocab"]
    for special in specials:
        vocabulary[special] = len(vocabulary)
    made = Qwen2Tokenizer(vocab=vocabulary, merges=[tuple(pair) for pair in model["merges"]], **names)
    made.add_tokens([AddedToken(token, special=token not in plain, normalized=False) for token in specials])
    for role in ROLES:
        if len(made.encode(role)) != 1:
            raise ValueError(f"the tokenizer has no single token for {role!r}")
    return made
