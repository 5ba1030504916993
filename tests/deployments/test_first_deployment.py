"""`plan guide deploying`: a test types what the page says, with a server and a worker of its own."""

import pytest

from tests.guide import GUIDE
from tests.guide.typist import Typist

pytestmark = pytest.mark.thorough


def test_the_page_works_as_written(typist: Typist) -> None:
    typed = typist.type_page((GUIDE / "deploying.md").read_text(encoding="utf-8"))
    assert len(typed) >= 15
    assert (typist.folder / "restarts.log").read_text() == "restarted web-1\nrestarted web-2\n"
