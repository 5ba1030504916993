"""The catalogues of our texts in other languages: which texts there are, and their translations.

`python -m tests.language`, a part of `make generated`, adds new texts to each catalogue and takes out those that are gone. Then write the
translations that it names into `plan_adapter/locale/LANGUAGE/LC_MESSAGES/plan_adapter.po`, and run it again.
"""

import ast
from collections.abc import Iterator
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path

from babel.messages.catalog import Catalog, Message
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po

from plan_adapter.model.language import LANGUAGES
from plan_adapter.model.status import RunOutcome, RunReason

PACKAGE = Path(__file__).parents[2] / "plan_adapter"
SAYS = {"tr": 0, "later": 0, "in_all_languages": 0, "counted": 1}
"""The functions that take a text of ours, and at which place."""


def texts_of_ours() -> dict[str, list[str]]:
    """Return the texts that are said in the language of the reader, each with the modules that have it. `# step` is a counted noun."""
    found = {word.value: ["model/status.py"] for word in (*RunOutcome, *RunReason)}
    for path in sorted(PACKAGE.rglob("*.py")):
        for text in _texts_in(ast.parse(path.read_text(encoding="utf-8"))):
            found.setdefault(text, []).append(path.relative_to(PACKAGE).as_posix())
    return found


def _texts_in(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        match node.func.id, node.args:
            case ("counted", [_, ast.Constant(value=str(noun)), *_]):
                yield f"# {noun}"
            case (name, [ast.Constant(value=str(text)), *_]) if SAYS.get(name) == 0:
                yield text
            case ("_of", _):  # the label of a field
                yield from (word.value.value for word in node.keywords if word.arg == "label" and isinstance(word.value, ast.Constant))
            case _:
                pass


def catalogue_file(language: str) -> Path:
    """Return the catalogue that people edit."""
    return PACKAGE / "locale" / language / "LC_MESSAGES" / "plan_adapter.po"


def read_catalogue(language: str) -> Catalog:
    """Return the translations into `language`."""
    path = catalogue_file(language)
    if not path.exists():
        return Catalog(locale=language)
    with path.open("rb") as file:
        return read_po(file, locale=language)


def untranslated(catalogue: Catalog) -> list[str]:
    """Return the texts without a translation."""
    return [str(message.id) for message in catalogue if message.id and not message.string]


def updated(language: str) -> Catalog:
    """Return the catalogue of `language` with exactly the texts that the package has."""
    known, catalogue = read_catalogue(language), Catalog(locale=language, header_comment=HEADER, fuzzy=False)
    for text, places in texts_of_ours().items():
        message: Message | None = known.get(text)
        catalogue.add(text, message.string if message is not None else "", locations=[(place, 0) for place in dict.fromkeys(places)])
    return catalogue


MADE = datetime(2026, 1, 1, tzinfo=UTC)
"""The time in the header of a compiled catalogue, always the same, so that it changes only with its texts."""

HEADER = "# Texts of plan_adapter in another language. `make generated` keeps the list; write the translations here."


def po_bytes(catalogue: Catalog) -> bytes:
    """Return the catalogue as people edit it, without times and line numbers, which change without need."""
    written = BytesIO()
    write_po(written, catalogue, sort_output=False, include_lineno=False, omit_header=True, width=120)
    head = f'{HEADER}\nmsgid ""\nmsgstr "Content-Type: text/plain; charset=utf-8\\n"\n\n'
    return head.encode() + written.getvalue()


def mo_bytes(catalogue: Catalog) -> bytes:
    """Return the catalogue as gettext reads it."""
    compiled, written = Catalog(charset="utf-8", creation_date=MADE, revision_date=MADE, fuzzy=False), BytesIO()
    for message in catalogue:
        if message.id:
            compiled.add(message.id, message.string)
    write_mo(written, compiled)
    return written.getvalue()


def write_all() -> Iterator[tuple[str, str]]:
    """Write every catalogue. Yield the language and text of each translation that is missing."""
    for language in LANGUAGES[1:]:
        catalogue, path = updated(language), catalogue_file(language)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(po_bytes(catalogue))
        path.with_suffix(".mo").write_bytes(mo_bytes(catalogue))
        yield from ((language, text) for text in untranslated(catalogue))
