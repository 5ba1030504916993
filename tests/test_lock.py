"""requirements.lock pins what pyproject.toml asks for, and nothing but names and versions."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LINES = [line for line in (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
PINNED = {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in LINES)}


OPTIONAL = [wanted for extra in PROJECT["project"]["optional-dependencies"].values() for wanted in extra]


@pytest.mark.parametrize("wanted", PROJECT["project"]["dependencies"] + OPTIONAL + PROJECT["dependency-groups"]["dev"])
def test_what_the_project_asks_for_is_pinned_to_a_version_that_fits(wanted: str) -> None:
    requirement = Requirement(wanted)
    assert PINNED[canonicalize_name(requirement.name)] in requirement.specifier, "run `make lock`"


def test_the_lock_names_no_place_to_fetch_from() -> None:
    assert [line for line in LINES if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line)] == []
