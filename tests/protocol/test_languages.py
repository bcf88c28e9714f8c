"""Values of a field ``language``, for every reader of the field."""

from __future__ import annotations

import pytest

from omni_actors.pipelines.registry import Registry
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.languages import chosen_language, language_code

CODES = ("de", "en", "yue", "zh")
NAMES = ("chinese", "english", "german", "beijing_dialect")


@pytest.mark.parametrize("given", [None, "", "  ", "auto", "Auto", " AUTO "])
def test_the_choice_is_left_to_the_model(given: str | None) -> None:
    assert language_code(given) is None
    assert chosen_language(given, CODES) is None
    assert chosen_language(given, ()) is None


@pytest.mark.parametrize("given", ["en", "EN", "en-US", "en_GB", "English", " english "])
def test_one_language_is_written_in_many_ways(given: str) -> None:
    assert language_code(given) == "en"
    assert chosen_language(given, CODES) == "en"
    assert chosen_language(given, NAMES) == "english"
    assert chosen_language(given, ()) == "en"


@pytest.mark.parametrize(
    ("given", "known", "found"),
    [
        ("Mandarin", CODES, "zh"),
        ("Mandarin", NAMES, "chinese"),
        ("zh-Hant", CODES, "zh"),
        ("Cantonese", CODES, "yue"),
        ("Flemish", ("nl",), "nl"),
        ("Beijing_Dialect", NAMES, "beijing_dialect"),
        ("pt-BR", ("pt", "pt-BR"), "pt-BR"),
        ("pt", ("pt-BR", "pt-PT"), "pt-BR"),
        ("Elvish", (), "elvish"),
    ],
)
def test_a_language_is_returned_in_the_models_spelling(given: str, known: tuple[str, ...], found: str) -> None:
    assert chosen_language(given, known) == found


def test_an_unknown_language_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(OmniError) as caught:
        chosen_language("Elvish" * 1000, CODES, "audio.language")
    assert (caught.value.info.status, caught.value.info.param) == (400, "audio.language")
    assert "de, en, yue, zh" in caught.value.info.message
    assert len(caught.value.info.message) < 200


def test_each_language_of_each_pipeline_is_known_by_code_and_by_name() -> None:
    """A pipeline may declare either form; a client may send either form."""
    registry = Registry.installed()
    served = [registry.load(name) for name in registry.targets]
    declared = [(it.name, it.languages, language) for it in served for language in it.languages]
    assert len(declared) > 30
    for name, known, language in declared:
        assert chosen_language(language.upper(), known) == language, name
        assert chosen_language(language_code(language), known) == language, name
