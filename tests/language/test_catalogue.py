"""Every text of ours has a translation with the same values and marks, and the compiled catalogue is the one that people edit."""

import re
from gettext import GNUTranslations
from string import Formatter

import pytest

from plan_adapter.model.language import LANGUAGES, in_all_languages, language_of, speaking, spoken, tr
from plan_adapter.model.readable import counted, listed
from tests.language import catalogue_file, read_catalogue, texts_of_ours, untranslated

OTHERS = LANGUAGES[1:]
WRITE_THEM = "`make generated`, and translate what it names"


def values_in(text: str) -> list[str]:
    return sorted(name for _, name, _, _ in Formatter().parse(text) if name is not None)


@pytest.mark.parametrize("language", OTHERS)
def test_every_text_is_translated(language: str) -> None:
    catalogue = read_catalogue(language)
    assert {str(message.id) for message in catalogue if message.id} == texts_of_ours().keys(), WRITE_THEM
    assert untranslated(catalogue) == [], WRITE_THEM


@pytest.mark.parametrize("language", OTHERS)
def test_a_translation_has_the_values_the_code_and_the_marks_of_its_text(language: str) -> None:
    for message in read_catalogue(language):
        text, said = str(message.id), str(message.string)
        assert values_in(text) == values_in(said), text
        assert sorted(re.findall(r"`[^`]*`", text)) == sorted(re.findall(r"`[^`]*`", said)), text
        assert text.count("**") == said.count("**"), text
        assert text.startswith("# ") == ("#" in said), text


@pytest.mark.parametrize("language", OTHERS)
def test_the_compiled_catalogue_is_up_to_date(language: str) -> None:
    edited = {str(message.id): str(message.string) for message in read_catalogue(language) if message.id}
    with catalogue_file(language).with_suffix(".mo").open("rb") as file:
        compiled: dict[str, str] = vars(GNUTranslations(file))["_catalog"]
    assert {text: said for text, said in compiled.items() if text} == edited, WRITE_THEM  # the header is under the empty text


def test_texts_are_english_unless_another_language_is_spoken() -> None:
    assert (tr("Decision"), counted(2, "step"), listed(["a", "b"], 1)) == ("Decision", "2 steps", "a and 1 more")
    with speaking("zh"):
        assert (tr("Decision"), counted(2, "step"), listed(["a", "b"], 1)) == ("决定", "2 个步骤", "a 及另外 1 个")
        with speaking("en"):
            assert spoken() == "en"
        assert spoken() == "zh"
    assert in_all_languages("cannot be undone") == ["cannot be undone", "无法撤销"]


def test_a_value_cannot_be_taken_for_a_placeholder() -> None:
    assert tr("Approve {name}?", name="{name} {0}") == "Approve {name} {0}?"


@pytest.mark.parametrize(
    ("chosen", "locale", "language"),
    [
        ([None, None], "C.UTF-8", "en"),
        ([None, None], "zh_CN.UTF-8", "zh"),
        ([None, "en"], "zh_CN.UTF-8", "en"),
        (["zh", "en"], "C", "zh"),
        ([None, "kl"], "zh_TW", "zh"),
        ([None, None], "", "en"),
    ],
)
def test_the_language_is_that_of_the_plan_or_the_setting_or_the_locale(
    chosen: list[str | None], locale: str, language: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LC_ALL", raising=False)
    monkeypatch.delenv("LC_MESSAGES", raising=False)
    monkeypatch.setenv("LANG", locale)
    assert language_of(*chosen) == language
