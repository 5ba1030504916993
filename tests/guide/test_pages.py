"""Tests of the pages with commands: a test types what they say. The parts with a server are in tests/browser and tests/deployments."""

from tests.guide import GUIDE
from tests.guide.typist import Typist

TUTORIAL = (GUIDE / "tutorial.md").read_text(encoding="utf-8")


def test_the_tutorial_works_as_written_up_to_the_server(typist: Typist) -> None:
    assert len(typist.type_page(TUTORIAL.partition("## 10. ")[0])) >= 30
