"""Figures other than plain numbers, in words: codes with leading zeros, telephone numbers, versions, addresses, chains.

Plain numbers, times, dates, fractions, money and units are left to the voice. The voice loses a number's leading zeros
and a decimal's trailing zeros, and joins numbers separated by marks without a space.
"""

from __future__ import annotations

import re

_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_MONTH = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sept?|Oct|Nov|Dec|" + "|".join(_MONTHS)
_UNIT = r"(?:[kcmnµ]?m|[kmµ]?g|ml|l|lbs?|oz|ft|mi|yd|km/h|kph|mph|[kMG]?Hz|[kKMGT]B|hrs?|mins?|secs?|ms|[kMG]Wh?)\b|°"

_MONTH_AND_0 = re.compile(rf"\b((?:{_MONTH})\.? )0(?=[1-9]\b)")
_0_AND_MONTH = re.compile(rf"\b0([1-9] (?:of )?(?:{_MONTH})\b)")
_THOUSANDS = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?: 000)+(?![\d.,])")
_STAMP = re.compile(r"(?<=\d\d-\d\d)T(?=\d\d:\d\d)")
_CENTS = re.compile(r"([$£€]\d+\.\d)(?!\d|\s?(?:hundred|thousand|million|billion|trillion|[kKmMbB]\b))")

_FIGURES = re.compile(
    rf"""
    (?P<hex>\b0[xX](?P<hexed>[0-9A-Fa-f]+)\b)
    |(?P<left>(?<![\d-])\d{{4}}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])(?![\d-])      # a date
        |(?<![\d/])\d{{1,2}}/\d{{1,2}}/(?:\d{{4}}|\d{{2}})(?![\d/])                     # a date
        |(?<![\d:])(?:[01]?\d|2[0-4]):[0-5]\d(?::[0-5]\d)?(?![\d:])                     # a time
        |\d{{1,3}}(?:,\d{{2,3}})++(?!\.?\d)                                             # 1,005
        |[$£€¥₹₩]\s?[\d,]+(?:\.\d+)?)                                                   # money
    |(?<![\d-])(?P<year>(?:19|20)\d\d)-(?P<month>0[1-9]|1[0-2])(?![\d-])
    |(?<![\d/])(?P<day>(?:0[1-9]/(?:0[1-9]|[12]\d|3[01]))|(?:1[0-2]/0[1-9]))(?![\d/])
    |(?P<groups>\+\d{{1,4}}(?:[ .-]?\(\d{{1,5}}\)|[ .-]\d{{2,}}+){{1,6}}(?:[ .-]?\d{{2,}}+)*(?![\d.,]?\d)  # +44 20 …
        |\+\d{{9,15}}(?!\d)
        |\(\d{{3,5}}\)[ -]?\d{{3,4}}(?:[ -]\d{{3,4}})?(?!\d)                            # (555) 010-0042
        |(?<![\d.,-])\d{{4}}(?:[ -]\d{{4}}){{3}}(?![\d-])                               # a card
        |(?<![\d.-])(?:1-)?(?:\d{{3}}-)?\d{{3}}-\d{{4}}(?![\d-])                        # 555-0100
        |(?<![\d.-])\d{{3}}\.\d{{3}}\.\d{{4}}(?![\d.]))
    |(?<![\d.,-])(?P<spaced>0\d{{1,4}}(?:[ -]\d{{2,6}}){{1,4}})(?![\d:/-]|[.,]\d)         # 0800 123 456
    |(?P<chain>\d+(?:-\d+){{2,}}-?)
    |(?P<dotted>\d+(?:\.\d+){{2,}})
    |(?<!\d)(?P<pair>(?P<one>0\d+|\d+)-(?P<two>0\d+|\d+))(?![\d.])
    |(?P<decimal>(?P<whole>(?:\d{{1,3}}(?:,\d{{2,3}})+|\d+)?)\.(?P<part>\d+))(?P<unit>(?=\s?(?:{_UNIT})))?
    |(?P<zeros>0\d+)(?P<nth>(?:st|nd|rd|th)\b)?
    |\d+
    """,
    re.VERBOSE,
)


def figures(text: str) -> str:
    """Return ``text`` with words in place of such figures."""
    text = _THOUSANDS.sub(lambda match: match[0].replace(" ", ","), text)
    text = _MONTH_AND_0.sub(r"\1", _0_AND_MONTH.sub(r"\1", _STAMP.sub(" ", text)))
    return _FIGURES.sub(_read, _CENTS.sub(r"\g<1>0", text))


def _read(match: re.Match[str]) -> str:
    words = _words(match)
    if words is None:
        return match[0]
    before, after = match.string[: match.start()][-1:], match.string[match.end() :][:1]
    return " " * before.isalnum() + words + " " * after.isalnum()


def _words(match: re.Match[str]) -> str | None:
    """Return the words for one figure, or ``None`` to leave it to the voice."""
    found = match.groupdict()
    if found["left"]:
        return None
    if found["hex"]:
        return f"zero x {' '.join(_DIGITS[int(it)] if it.isdigit() else it.upper() for it in found['hexed'])}"
    if found["year"]:
        return f"{_MONTHS[int(found['month']) - 1]} {found['year']}"
    if found["day"]:
        month, day = map(int, found["day"].split("/"))
        return f"{_MONTHS[month - 1]} {day}"
    if found["groups"]:
        return ("plus " if match[0][0] == "+" else "") + _grouped(match[0])
    if found["spaced"]:
        return _grouped(match[0]) if sum(map(str.isdigit, match[0])) >= 7 else _apart(match[0])
    if found["chain"]:
        return ", ".join(map(_short, re.findall(r"\d+", match[0])))
    if found["dotted"]:
        return " dot ".join(map(_short, match[0].split(".")))
    if found["pair"]:
        one, two = found["one"], found["two"]
        if not (_coded(one) or _coded(two)):
            return None
        return (" to " if max(len(one), len(two)) <= 2 else ", ").join(map(_short, (one, two)))
    if found["decimal"]:
        return _decimal(found["whole"], found["part"], found["unit"] is not None)
    if found["zeros"]:
        return _spelled(match[0]) if not found["nth"] else match[0].lstrip("0") or match[0]
    return None


def _apart(text: str) -> str:
    """Spell each code in a row of codes, and keep the numbers between codes."""
    return re.sub(r"\d+", lambda match: _spelled(match[0]) if _coded(match[0]) else match[0], text)


def _decimal(whole: str, part: str, unit: bool) -> str | None:
    if _coded(whole) or not whole:
        return f"{_spelled(whole.replace(',', ''))} point {_spelled(part)}".strip()
    return f"{whole} point {_spelled(part)}" if part.endswith("0") and not unit else None


def _coded(digits: str) -> bool:
    return len(digits) > 1 and digits[0] == "0"


def _short(digits: str) -> str:
    return _spelled(digits) if _coded(digits) or len(digits) > 2 else digits


def _spelled(digits: str) -> str:
    return " ".join(_DIGITS[int(digit)] for digit in digits)


def _grouped(text: str) -> str:
    """Digits in groups, with the voice's longer pause between: behind a comma a zero too many is heard in a row."""
    return "; ".join(map(_spelled, re.findall(r"\d+", text)))
