"""Values of a request's field ``language``: a code, an English name, or nothing.

Clients write the same language in many ways (``en``, ``EN``, ``en-US``, ``en_US``, ``English``), and leave the choice
to the model by an empty text or ``auto`` as often as by leaving the field out. API handlers and stages read the field
with :func:`chosen_language`, so that all take the same values.
"""

from __future__ import annotations

from collections.abc import Collection

from omni_actors.protocol.errors import invalid_request

_NAMES = {
    "aa": ("afar",),
    "ab": ("abkhazian",),
    "ae": ("avestan",),
    "af": ("afrikaans",),
    "ak": ("akan",),
    "am": ("amharic",),
    "an": ("aragonese",),
    "ar": ("arabic",),
    "as": ("assamese",),
    "av": ("avaric",),
    "ay": ("aymara",),
    "az": ("azerbaijani",),
    "ba": ("bashkir",),
    "be": ("belarusian",),
    "bg": ("bulgarian",),
    "bi": ("bislama",),
    "bm": ("bambara",),
    "bn": ("bengali",),
    "bo": ("tibetan",),
    "br": ("breton",),
    "bs": ("bosnian",),
    "ca": ("catalan", "valencian"),
    "ce": ("chechen",),
    "ch": ("chamorro",),
    "co": ("corsican",),
    "cr": ("cree",),
    "cs": ("czech",),
    "cu": ("church slavic",),
    "cv": ("chuvash",),
    "cy": ("welsh",),
    "da": ("danish",),
    "de": ("german",),
    "dv": ("divehi", "maldivian"),
    "dz": ("dzongkha",),
    "ee": ("ewe",),
    "el": ("greek",),
    "en": ("english",),
    "eo": ("esperanto",),
    "es": ("spanish", "castilian"),
    "et": ("estonian",),
    "eu": ("basque",),
    "fa": ("persian", "farsi"),
    "ff": ("fulah",),
    "fi": ("finnish",),
    "fil": ("filipino",),
    "fj": ("fijian",),
    "fo": ("faroese",),
    "fr": ("french",),
    "fy": ("western frisian", "frisian"),
    "ga": ("irish",),
    "gd": ("scottish gaelic", "gaelic"),
    "gl": ("galician",),
    "gn": ("guarani",),
    "gu": ("gujarati",),
    "gv": ("manx",),
    "ha": ("hausa",),
    "haw": ("hawaiian",),
    "he": ("hebrew",),
    "hi": ("hindi",),
    "ho": ("hiri motu",),
    "hr": ("croatian",),
    "ht": ("haitian creole", "haitian"),
    "hu": ("hungarian",),
    "hy": ("armenian",),
    "hz": ("herero",),
    "ia": ("interlingua",),
    "id": ("indonesian",),
    "ie": ("interlingue",),
    "ig": ("igbo",),
    "ii": ("sichuan yi",),
    "ik": ("inupiaq",),
    "io": ("ido",),
    "is": ("icelandic",),
    "it": ("italian",),
    "iu": ("inuktitut",),
    "ja": ("japanese",),
    "jv": ("javanese",),
    "ka": ("georgian",),
    "kg": ("kongo",),
    "ki": ("kikuyu",),
    "kj": ("kuanyama",),
    "kk": ("kazakh",),
    "kl": ("kalaallisut", "greenlandic"),
    "km": ("khmer", "cambodian"),
    "kn": ("kannada",),
    "ko": ("korean",),
    "kr": ("kanuri",),
    "ks": ("kashmiri",),
    "ku": ("kurdish",),
    "kv": ("komi",),
    "kw": ("cornish",),
    "ky": ("kyrgyz", "kirghiz"),
    "la": ("latin",),
    "lb": ("luxembourgish", "letzeburgesch"),
    "lg": ("ganda",),
    "li": ("limburgish",),
    "ln": ("lingala",),
    "lo": ("lao",),
    "lt": ("lithuanian",),
    "lu": ("luba-katanga",),
    "lv": ("latvian",),
    "mg": ("malagasy",),
    "mh": ("marshallese",),
    "mi": ("maori",),
    "mk": ("macedonian",),
    "ml": ("malayalam",),
    "mn": ("mongolian",),
    "mr": ("marathi",),
    "ms": ("malay",),
    "mt": ("maltese",),
    "my": ("burmese", "myanmar"),
    "na": ("nauru",),
    "nb": ("norwegian bokmal", "bokmal"),
    "nd": ("north ndebele",),
    "ne": ("nepali",),
    "ng": ("ndonga",),
    "nl": ("dutch", "flemish"),
    "nn": ("norwegian nynorsk", "nynorsk"),
    "no": ("norwegian",),
    "nr": ("south ndebele",),
    "nv": ("navajo",),
    "ny": ("chichewa", "nyanja"),
    "oc": ("occitan",),
    "oj": ("ojibwa",),
    "om": ("oromo",),
    "or": ("odia", "oriya"),
    "os": ("ossetian",),
    "pa": ("punjabi", "panjabi"),
    "pi": ("pali",),
    "pl": ("polish",),
    "ps": ("pashto", "pushto"),
    "pt": ("portuguese",),
    "qu": ("quechua",),
    "rm": ("romansh",),
    "rn": ("rundi",),
    "ro": ("romanian", "moldavian", "moldovan"),
    "ru": ("russian",),
    "rw": ("kinyarwanda",),
    "sa": ("sanskrit",),
    "sc": ("sardinian",),
    "sd": ("sindhi",),
    "se": ("northern sami",),
    "sg": ("sango",),
    "si": ("sinhala", "sinhalese"),
    "sk": ("slovak",),
    "sl": ("slovenian", "slovene"),
    "sm": ("samoan",),
    "sn": ("shona",),
    "so": ("somali",),
    "sq": ("albanian",),
    "sr": ("serbian",),
    "ss": ("swati",),
    "st": ("southern sotho",),
    "su": ("sundanese",),
    "sv": ("swedish",),
    "sw": ("swahili",),
    "ta": ("tamil",),
    "te": ("telugu",),
    "tg": ("tajik",),
    "th": ("thai",),
    "ti": ("tigrinya",),
    "tk": ("turkmen",),
    "tl": ("tagalog",),
    "tn": ("tswana",),
    "to": ("tonga",),
    "tr": ("turkish",),
    "ts": ("tsonga",),
    "tt": ("tatar",),
    "tw": ("twi",),
    "ty": ("tahitian",),
    "ug": ("uyghur", "uighur"),
    "uk": ("ukrainian",),
    "ur": ("urdu",),
    "uz": ("uzbek",),
    "ve": ("venda",),
    "vi": ("vietnamese",),
    "vo": ("volapuk",),
    "wa": ("walloon",),
    "wo": ("wolof",),
    "xh": ("xhosa",),
    "yi": ("yiddish",),
    "yo": ("yoruba",),
    "yue": ("cantonese",),
    "za": ("zhuang",),
    "zh": ("chinese", "mandarin"),
    "zu": ("zulu",),
}
"""Codes of ISO 639 → their English names, the usual one first."""

_CODES = {name: code for code, names in _NAMES.items() for name in names}

_LEFT_TO_THE_MODEL = ("", "auto")

_QUOTED = 64
"""Characters of an unknown language that the error repeats."""


def language_code(given: str | None) -> str | None:
    """Return the code of a language written as a code (with or without a country) or by its English name, in any case.

    Returns ``None`` if the choice is left to the model: by ``None``, a blank text or ``auto``. A language outside the
    table comes back in lower case, without its country.

        >>> language_code("en-US"), language_code("German"), language_code("auto")
        ('en', 'de', None)
    """
    wanted = _plain(given)
    return None if wanted in _LEFT_TO_THE_MODEL else _code(wanted)


def chosen_language(given: str | None, known: Collection[str], param: str = "language") -> str | None:
    """Return the entry of ``known`` (codes or English names, in the model's spelling) that ``given`` means.

    Args:
        given: The field of the request.
        known: The model's languages; if empty, the result is the code of ``given``.
        param: The name of the field, for the error.

    Returns:
        The language, or ``None`` if the choice is left to the model.

    Raises:
        OmniError: 400 with ``param`` for an unknown language; the message lists the known ones.
    """
    wanted = _plain(given)
    if wanted in _LEFT_TO_THE_MODEL:
        return None
    if not known:
        return _code(wanted)
    exactly = {_plain(name): name for name in known}
    by_code = {_code(plain): name for plain, name in reversed(exactly.items())}  # of two, the first
    found = exactly.get(wanted) or by_code.get(_code(wanted))
    if found is None:
        quoted = (given or "")[:_QUOTED]
        raise invalid_request(f"This model knows: {', '.join(known)}; not {quoted!r}.", param, "invalid_value")
    return found


def _plain(given: str | None) -> str:
    return (given or "").strip().lower().replace("_", "-")


def _code(plain: str) -> str:
    return _CODES.get(plain) or plain.partition("-")[0]
