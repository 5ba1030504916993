"""Tests of the pages with commands: a test types what they say.

The parts with a server are in `tests/browser/test_tutorial.py` and in `tests/deployments`.
"""

import re
import shutil
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.agent.goal_players import Seen, playing, reads, writes
from tests.agent.server import scripted
from tests.guide import GUIDE
from tests.guide.typist import Typist

TUTORIAL = (GUIDE / "tutorial.md").read_text(encoding="utf-8")
RECIPES = re.split(r"^## ", (GUIDE / "recipes.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]

pytestmark = pytest.mark.timeout(600)


def recipe(title: str) -> str:
    (text,) = [text for text in RECIPES if text.startswith(f"{title}\n")]
    return text


@pytest.mark.thorough  # 90 s: `make test` types the README, whose commands are the same
def test_the_tutorial_works_as_written_up_to_the_server(typist: Typist) -> None:
    assert len(typist.type_page(TUTORIAL.partition("## 10. ")[0])) >= 30


def test_the_recipe_for_a_rolling_change_works_as_written(typist: Typist) -> None:
    assert len(typist.type_page(recipe("Rolling change"))) == 4


@pytest.mark.thorough  # 14 s: tests/cli/test_digest.py and tests/identity test the same commands
@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")
def test_the_recipe_for_four_eyes_works_as_written(typist: Typist) -> None:
    assert len(typist.type_page(recipe("Four eyes"))) == 8
    assert not (typist.folder / "exports" / "old").exists()


@pytest.mark.thorough  # 20 s: tests/cli/test_quorum.py tests the same commands
@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")
def test_the_recipe_for_two_of_three_works_as_written(typist: Typist) -> None:
    assert len(typist.type_page(recipe("Two of three"))) == 9


@pytest.mark.thorough  # 10 s: tests/cli/test_attestations.py tests the same with the script
def test_the_page_about_attestations_works_as_written(typist: Typist) -> None:
    assert len(typist.type_page((GUIDE / "attestations.md").read_text(encoding="utf-8"))) == 7
    assert (typist.folder / "run.attestation.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.thorough  # 16 s: tests/integrations test the same with the libraries
def test_the_recipe_for_an_agent_works_as_written(typist: Typist) -> None:
    def player(seen: Seen) -> dict[str, Any]:
        if seen.proof("write_file"):
            return seen.end(f"{seen.proof('read_file')} shows the error, {seen.proof('write_file')} the report")
        if (answer := seen.result("read_file")) is None:
            return reads("read_file", path="web.log")
        return writes("write_file", path="report.txt", content=f"The newest error: {answer['text']}")

    with scripted(playing(player)) as server:
        typist.ports["8080"] = str(urlsplit(server.url).port)
        assert len(typist.type_page(recipe("An agent that writes under a gate"))) == 7


def test_every_recipe_is_typed_by_a_test() -> None:
    here = {"Rolling change", "Four eyes", "Two of three", "An agent that writes under a gate"}
    with_a_server = {"First deployment", "Nightly job", "A gate in CI"}
    assert {text.partition("\n")[0] for text in RECIPES} == here | with_a_server
