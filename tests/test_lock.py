"""Tests of requirements.lock: it pins the requirements of pyproject.toml, and has only names and versions."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LINES = [line for line in (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
PINNED = {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in LINES)}


OPTIONAL = [wanted for extra in PROJECT["project"]["optional-dependencies"].values() for wanted in extra]


def test_every_requirement_is_pinned_to_a_matching_version() -> None:
    requirements = [Requirement(text) for text in PROJECT["project"]["dependencies"] + OPTIONAL + PROJECT["dependency-groups"]["dev"]]
    unfit = [str(requirement) for requirement in requirements if PINNED[canonicalize_name(requirement.name)] not in requirement.specifier]
    assert unfit == [], "run `make lock`"


def test_the_lock_has_no_urls() -> None:
    assert [line for line in LINES if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line)] == []
