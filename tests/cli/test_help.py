"""Help, usage errors, and what a command does not import."""

import subprocess
import sys

import pytest

from plan_adapter.cli.app import GROUPS, VERBS
from tests.cli.conftest import Plan

HEAVY = ("prefect", "sqlalchemy", "yaml", "rich", "cel_expr_python", "httpx", "pydantic", "openai", "json_repair")


def imported_by(*arguments: str) -> set[str]:
    """The heavy libraries that are imported when `plan ARGUMENTS` has ended, in a process of its own."""
    script = (
        "import sys\nfrom plan_adapter.cli.app import main\n"
        f"main({list(arguments)!r})\nprint('\\n' + ' '.join(name for name in {HEAVY!r} if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("word", ["--help", "-h", "help"])
def test_help_groups_the_verbs_by_what_a_person_is_doing(plan: Plan, word: str) -> None:
    said = plan(word)
    assert said.code == 0
    shown = {title: text.split("\n\n")[0] for title in GROUPS for text in [said.out.partition(f"\n\n{title}:\n")[2]]}
    assert {title: [line.split()[0] for line in text.splitlines()] for title, text in shown.items()} == {
        "Write": ["init", "validate", "preview", "test", "draft", "promote", "import", "schema", "tools"],
        "Run": ["run", "deploy", "undeploy", "serve", "pursue"],
        "Decide": ["gates", "approve", "answer", "reject", "resolve", "standing", "enroll", "policy"],
        "Look": ["runs", "show", "versions", "diff", "logs", "export", "explain", "guide"],
        "Repair": ["resume", "revise", "cancel", "reconcile"],
        "Keep": ["save", "prune", "erase", "store"],
        "Set up": ["doctor", "down", "mcp"],
    }
    assert max(len(line) for line in said.out.splitlines()) <= 120


def test_no_verb_at_all_is_answered_with_help(plan: Plan) -> None:
    assert plan().out == plan("--help").out


@pytest.mark.parametrize("verb", [verb.name for verb in VERBS])
def test_every_verb_explains_itself(plan: Plan, verb: str) -> None:
    said = plan(verb, "--help")
    assert said.code == 0
    assert said.out.startswith(f"Usage: plan {verb}")
    assert "--json" in said.out
    assert plan("help", verb).out == said.out


def test_help_imports_nothing_heavy() -> None:
    assert imported_by("--help") == set()


def test_validating_a_plan_imports_neither_prefect_nor_a_database_nor_the_display() -> None:
    assert imported_by("init") | imported_by("validate", "plan.yaml") <= {"yaml", "cel_expr_python", "pydantic"}


def test_a_prompt_for_a_chat_needs_neither_the_models_client_nor_prefect_nor_a_database() -> None:
    used = imported_by("draft", "Ask", "--tool", "http_get", "--print-prompt")
    assert "pydantic" in used  # the prompt was made
    assert not used & {"openai", "prefect", "sqlalchemy", "rich"}


def test_an_unknown_verb_is_a_usage_error_that_names_the_nearest(plan: Plan) -> None:
    said = plan("validat", "plan.yaml")
    assert said.code == 2
    assert said.err == "plan: there is no verb `validat`; did you mean `validate`?\n"
    assert said.out == ""


@pytest.mark.parametrize(
    "arguments",
    [("run",), ("run", "a", "b"), ("explain", "cycle", "--jsn"), ("runs", "--limit", "many"), ("--bogus",), ("validate",)],
    ids=" ".join,
)
def test_wrong_usage_is_one_line_and_exit_code_2(plan: Plan, arguments: tuple[str, ...]) -> None:
    said = plan(*arguments)
    assert said.code == 2
    assert len(said.err.splitlines()) == 1
    assert said.err.startswith("plan: ")
    assert said.out == ""


@pytest.mark.parametrize("value", ["sre=ana", '["ana"]', '{"sre": "ana"}', '{"sre": [7]}', ""])
def test_wrong_settings_say_how_to_write_them_and_not_what_they_are(plan: Plan, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_GROUPS", value)
    monkeypatch.setenv("PLAN_ADAPTER_LEASE_SECONDS", "soon")
    said = plan("gates", "--json")
    groups = 'PLAN_ADAPTER_GROUPS: write JSON that lists the members of each group, as in {"sre": ["ana", "bo"]}'
    lease = "PLAN_ADAPTER_LEASE_SECONDS: Input should be a valid number, unable to parse string as a number"
    assert (said.code, said.err, said.run["error"]) == (2, f"plan: {lease}; {groups}\n", "settings")


def test_a_usage_error_is_an_object_with_json(plan: Plan) -> None:
    said = plan("explain", "cyle", "--json")
    assert said.code == 2
    assert said.lines == [{"error": "usage", "message": "no problem has the code `cyle`; did you mean `cycle`?"}]


def test_the_version_is_printed(plan: Plan) -> None:
    assert plan("--version").out.startswith("plan 0.")


def test_shells_get_completion_of_verbs(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> None:
    script = tmp_path_factory.mktemp("completion") / "plan.bash"
    from plan_adapter.cli.app import build_app

    build_app().install_completion(shell="bash", output=script, add_to_startup=False)
    assert "validate" in script.read_text()
