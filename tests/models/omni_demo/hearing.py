"""Texts with figures, entities, scripts and signs, said by the demo's voice and heard by pocketsphinx.

``python -m tests.models.omni_demo.hearing`` says all of them and prints what was heard. pocketsphinx shares nothing
with the voice or with the demo's recogniser. It is told which words there may be (all number words, and the other words
of the text), not in which order or how many: its grammar is one loop over them. It takes some words for others that
sound like them (*seven eight* for *seventy*), so what it does not hear right is heard by the demo's Whisper as well.
"""

from __future__ import annotations

import re
import sys
from typing import Any

import numpy as np
import pocketsphinx
import soxr
from tests.models.omni_demo.harness import Stage, Voice, hear, samples_of

from omni_actors.models.weights.cache import demo_folder

NUMBERS = frozenset(
    [
        *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
        *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty", "thirty"),
        *("forty", "fifty", "sixty", "seventy", "eighty", "ninety", "hundred", "thousand", "million", "half"),
        *("first", "fifth", "point", "minus"),
    ]
)

ALIKE = {"oh": "zero"}

TEXTS: tuple[tuple[str, str], ...] = (
    # codes
    ("Agent 007 is here.", "agent zero zero seven is here"),
    ("Go to room 0042.", "go to room zero zero four two"),
    ("The code is 0420.", "the code is zero four two zero"),
    ("The code is 00000.", "the code is zero zero zero zero zero"),
    ("The code is 02134.", "the code is zero two one three four"),
    ("The file is number 0815.", "the file is number zero eight one five"),
    ("The code is ٠٠٧.", "the code is zero zero seven"),
    ("The code is \u0966\u096a\u0968.", "the code is zero four two"),
    ("The code is \uff10\uff11\uff12.", "the code is zero one two"),
    ("The code is 𝟘𝟙𝟚.", "the code is zero one two"),
    # telephones
    ("Call 555-0100 now.", "call five five five zero one zero zero now"),
    ("Call (555) 010-0042.", "call five five five zero one zero zero zero four two"),
    ("Call +44 20 7946 0958.", "call plus four four two zero seven nine four six zero nine five eight"),
    ("Call 0800 123 456 now.", "call zero eight zero zero one two three four five six now"),
    ("Call +1 (202) 555-0143.", "call plus one two zero two five five five zero one four three"),
    ("Call 202.555.0143 now.", "call two zero two five five five zero one four three now"),
    # what begins with 0 and is a number
    ("The price is 0.5 dollars.", "the price is zero point five dollars"),
    ("The answer is 0.", "the answer is zero"),
    ("The answer is 0 degrees.", "the answer is zero degrees"),
    ("The answer is -0.25 degrees.", "the answer is minus zero point two five degrees"),
    ("The answer is 0.05% of it.", "the answer is zero point zero five percent of it"),
    ("The answer is .05 now.", "the answer is point zero five now"),
    ("The answer is 10:05 now.", "the answer is ten oh five now"),
    ("The answer is 09:30 now.", "the answer is nine thirty now"),
    ("The answer is 05:00 now.", "the answer is five o'clock now"),
    ("The date is 2007-01-05.", "the date is january fifth two thousand seven"),
    ("The date is 01/05/2007.", "the date is january fifth two thousand seven"),
    ("The date is Jan 05, 2007.", "the date is january fifth two thousand seven"),
    ("The price is $0.99.", "the price is ninety nine cents"),
    ("The price is $0.5.", "the price is fifty cents"),
    # versions, addresses, chains
    ("The version is 3.10.", "the version is three point one zero"),
    ("The version is 2.0.1.", "the version is two dot zero dot one"),
    ("The address is 192.168.0.1.", "the address is one nine two dot one six eight dot zero dot one"),
    ("The number is 123-45-6789.", "the number is one two three forty five six seven eight nine"),
    ("The code is 978-0-306-40615-7.", "the code is nine seven eight zero three zero six four zero six one five seven"),
    ("The answer is 1-1-1-1-1.", "the answer is one one one one one"),
    ("The number is 4111 1111 1111 1111.", "the number is four one one one " + "one " * 12),
    # plain numbers
    ("The answer is 42.", "the answer is forty two"),
    ("There are 1,005 of them.", "there are one thousand five of them"),
    ("There are 1\u202f234 of them.", "there are one thousand two hundred thirty four of them"),
    ("There are 10 000 of them.", "there are ten thousand of them"),
    ("There are 1,234,567 of them.",
     "there are one million two hundred thirty four thousand five hundred sixty seven of them"),
    ("The year is 1984.", "the year is nineteen eighty four"),
    ("The year is 2024.", "the year is twenty twenty four"),
    ("The answer is 12.5% of it.", "the answer is twelve point five percent of it"),
    ("The answer is -40°C now.", "the answer is minus forty degrees celsius now"),
    ("Go to pages 10-20.", "go to pages ten to twenty"),
    ("The score is 3-0.", "the score is three to zero"),
    ("The answer is the 21st of them.", "the answer is the twenty first of them"),
    ("The answer is 3 + 4 = 7.", "the answer is three plus four equals seven"),
    ("The price is €5.50.", "the price is five euros and fifty cents"),
    ("The price is £3.5.", "the price is three pounds and fifty pence"),
    ("The answer is ½ of it.", "the answer is one half of it"),
    ("The answer is 1½ of it.", "the answer is one and one half of it"),
    # entities, scripts and signs
    ("Tom &amp; Jerry are here.", "tom and jerry are here"),
    ("The price is &#36;20 now.", "the price is twenty dollars now"),
    ("The answer is 5&nbsp;degrees &lt; now.", "the answer is five degrees less than now"),
    ("The answer Привет is 42 κόσμε.", "the answer is forty two"),
    ("The café გამარჯობა has 20 pages.", "the cafe has twenty pages"),
    ("𝐓𝐡𝐞 𝐚𝐧𝐬𝐰𝐞𝐫 բարեւ is ⑦ 你好.", "the answer is seven"),
)  # fmt: skip


class Ear:
    """pocketsphinx, listening for numbers among known words."""

    def __init__(self) -> None:
        self._decoder = pocketsphinx.Decoder(samprate=16_000, loglevel="FATAL", lm=None, wip=0.05)

    def words(self, samples: np.ndarray[Any, np.dtype[np.float32]], rate: int, others: list[str]) -> list[str]:
        """What is heard, when there are number words and these others."""
        known = [word for word in sorted({*NUMBERS, *others}) if self._decoder.lookup_word(word)]
        self._decoder.add_jsgf_string("w", f"#JSGF V1.0; grammar w; public <w> = ( {' | '.join(known)} )+ ;")
        self._decoder.activate_search("w")
        low = np.pad(soxr.resample(samples, rate, 16_000), 4_000)
        self._decoder.start_utt()
        self._decoder.process_raw((np.clip(low, -1, 1) * 32767).astype("<i2").tobytes(), full_utt=True)
        self._decoder.end_utt()
        found = self._decoder.hyp()
        return [] if found is None else re.sub(r"\(\d\)", "", found.hypstr).split()


def numbers(words: list[str]) -> list[str]:
    """The number words of a text, in order."""
    return [ALIKE.get(word, word) for word in words if ALIKE.get(word, word) in NUMBERS]


def hears(voice: Voice, ear: Ear, written: str, spoken: str) -> tuple[bool, str]:
    """Whether every number of a text is heard as it should be, and all that is heard."""
    heard = ear.words(samples_of(voice.say(written)), 24_000, spoken.split())
    return numbers(heard) == numbers(spoken.split()), " ".join(heard)


def by_whisper(recogniser: Stage, voice: Voice, written: str) -> tuple[bool, str]:
    """Whether the demo's recogniser writes the same digits down (but for zeros at their begin), and what it writes."""
    text, _ = hear(recogniser, soxr.resample(samples_of(voice.say(written)), 24_000, 16_000), 16_000)
    said, heard = (re.sub(r"\D", "", it).lstrip("0") for it in (written, text))
    return said == heard, text


def main() -> int:
    weights = demo_folder()
    voice, ear = Voice(Stage("acoustic", weights), Stage("vocoder", weights)), Ear()
    recogniser = Stage("asr", weights)
    first = second = 0
    for written, spoken in TEXTS:
        right, heard = hears(voice, ear, written, spoken)
        first += right
        print(f"{'right' if right else 'other'} | {written} | {spoken} | {heard}", flush=True)
        if not right:
            right, heard = by_whisper(recogniser, voice, written)
            second += right
            print(f"{'right' if right else 'WRONG'} | Whisper: {heard}", flush=True)
    print(f"{len(TEXTS)} texts, every number right: {first} by pocketsphinx, {second} of the rest by Whisper")
    return len(TEXTS) - first - second


if __name__ == "__main__":
    sys.exit(main())
