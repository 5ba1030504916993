"""`tr` says a text of ours in the language of its reader. The code has the English texts, `locale` a catalogue for each other language.

Names, titles and values of a plan stay as its author wrote them.
"""

import gettext
import os
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.resources import files
from typing import Literal, TypeAlias, get_args

Language: TypeAlias = Literal["en", "zh"]
"""A language that our texts are written in, by its ISO 639 code."""

LANGUAGES: tuple[Language, ...] = get_args(Language)

_spoken: ContextVar[Language] = ContextVar("language", default="en")


@contextmanager
def speaking(language: Language) -> Generator[None]:
    """Say texts in `language` while the block runs, and in every task that it starts."""
    before = _spoken.set(language)
    try:
        yield
    finally:
        _spoken.reset(before)


def language_of(*chosen: str | None) -> Language:
    """Return the first of the `chosen` languages that is one of ours, else that of this process's locale, else English."""
    locale = next((value for name in ("LC_ALL", "LC_MESSAGES", "LANG") if (value := os.environ.get(name))), "")
    for wanted in (*chosen, locale.partition("_")[0]):
        for language in LANGUAGES:
            if language == wanted:
                return language
    return "en"


def spoken() -> Language:
    """Return the language in which texts are said now."""
    return _spoken.get()


def tr(text: str, /, **values: object) -> str:
    """Return `text`, a literal, in the language of the reader, with each `{name}` replaced by its value."""
    language = _spoken.get()
    said = text if language == "en" or not text else _catalogue(language).gettext(text)
    return said.format_map(values) if values else said


def tr_counted(count: int, one: str, several: str) -> str:
    """Return `count` with its noun, as `counted` does."""
    language = _spoken.get()
    if language != "en" and (noun := _catalogue(language).gettext(f"# {one}")) != f"# {one}":
        return noun.replace("#", str(count))
    return f"{count} {one if count == 1 else several}"


def later(text: str) -> str:
    """Return `text` as it is. It marks a literal that is passed to `tr` where it is shown."""
    return text


def in_all_languages(text: str) -> list[str]:
    """Return `text`, a literal, in every language, to find it in a text that another process wrote."""
    return list(dict.fromkeys([text, *(_catalogue(language).gettext(text) for language in LANGUAGES if language != "en")]))


@cache
def _catalogue(language: Language) -> gettext.GNUTranslations:
    with (files("plan_adapter") / "locale" / language / "LC_MESSAGES" / "plan_adapter.mo").open("rb") as file:
        return gettext.GNUTranslations(file)
