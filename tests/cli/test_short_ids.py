"""Tests of shortened run ids: every verb takes a prefix of at least four characters."""

import itertools

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


def test_a_run_id_prefix_needs_at_least_four_characters(plan: Plan) -> None:
    run_id = waiting(plan)
    for verb, length in itertools.product(VERBS, (1, 3)):
        result = plan(*(run_id[:length] if word == "ID" else word for word in verb))
        message = f"`{run_id[:length]}` is too short for the id of a run: give at least 4 of its characters"
        assert (result.code, message in result.err) == (2, True), (verb, result.err)
    assert plan("show", run_id[:4], "--json").run["status"] == "pending_approval"
