"""Regenerate the files in tests/gates/texts after a change of wording."""

from tests.gates.test_text import SHOWN, TEXTS

for name, text in SHOWN.items():
    (TEXTS / f"{name}.md").write_text(text(), encoding="utf-8")
