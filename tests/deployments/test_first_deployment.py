"""`plan guide deploying`, and the recipes with a server: a test types what the pages say, with a server and a worker of its own."""

import subprocess

import pytest
import yaml

from tests.guide import GUIDE
from tests.guide.test_pages import recipe
from tests.guide.typist import Typist

pytestmark = pytest.mark.thorough


def test_the_page_works_as_written(typist: Typist) -> None:
    typed = typist.type_page((GUIDE / "deploying.md").read_text(encoding="utf-8"))
    assert len(typed) >= 15
    assert (typist.folder / "restarts.log").read_text() == "restarted web-1\nrestarted web-2\n"


@pytest.mark.timeout(600)
def test_the_recipes_with_a_server_work_as_written(typist: Typist) -> None:
    assert len(typist.type_page(recipe("First deployment"))) == 5
    assert len(typist.type_page(recipe("Nightly job"))) == 3
    workflow, _, answers = recipe("A gate in CI").partition("While the job waits")
    typist.type_page(workflow)
    steps = yaml.safe_load((typist.folder / ".github/workflows/restart.yaml").read_text(encoding="utf-8"))["jobs"]["restart"]["steps"]
    environment = {**typist.environment, "HOST": "web-2"}
    job = subprocess.Popen(["bash", "-ec", steps[-1]["run"]], cwd=typist.folder, env=environment, stdin=subprocess.DEVNULL)
    try:
        assert len(typist.type_page(answers)) == 2
        assert job.wait(timeout=120) == 0
    finally:
        job.kill()
    assert (typist.folder / "restarts.log").read_text() == "restarted web-1\nrestarted web-2\n"
