"""Tests of the references in the guide: they say what the code says today."""

from importlib import import_module

import pytest

from plan_adapter.cli.app import VERBS
from plan_adapter.local.settings import Settings
from plan_adapter.model.problems import CATALOGUE
from tests.guide import GUIDE
from tests.guide.references import MODULES, REFERENCES


def page(name: str) -> str:
    return (GUIDE / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", REFERENCES)
def test_a_reference_is_current(name: str) -> None:
    assert page(name) == REFERENCES[name](), "run `make generated`"


def test_the_references_have_every_verb_setting_problem_and_public_name() -> None:
    assert [name for verb in VERBS.values() for name in verb.commands if f"\n## plan {name}\n" not in page("reference-cli.md")] == []
    assert [name for name in Settings.model_fields if f"| `PLAN_ADAPTER_{name.upper()}` |" not in page("reference-settings.md")] == []
    assert [code for code in CATALOGUE if f"\n## {code}\n" not in page("reference-problems.md")] == []
    names = [name for module in MODULES for name in import_module(module).__all__]
    assert [name for name in names if f"\n### {name}\n" not in page("reference-python.md")] == []
