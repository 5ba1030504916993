"""How little of a run's id names the run."""

import pytest

from tests.cli.conftest import Plan
from tests.cli.gated import waiting
from tests.cli.test_run import TOOLS

VERBS = (
    ["approve", "ID"],
    ["reject", "ID"],
    ["resolve", "ID", "greet", "done"],
    ["cancel", "ID"],
    ["cancel", "ID", "--rollback"],
    ["resume", "ID", "--offline", *TOOLS],
    ["show", "ID"],
    ["logs", "ID"],
    ["export", "ID"],
    ["runs", "verify", "ID"],
)


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: " ".join(word for word in verb if word.isalpha()))
def test_fewer_than_four_characters_name_no_run(plan: Plan, verb: list[str]) -> None:
    run_id = waiting(plan)
    for length in (1, 3):
        said = plan(*(run_id[:length] if word == "ID" else word for word in verb))
        message = f"`{run_id[:length]}` is too short for the id of a run: give at least 4 of its characters"
        assert (said.code, message in said.err) == (2, True), said.err
    assert plan("show", run_id[:4], "--json").run["status"] == "pending_approval"
