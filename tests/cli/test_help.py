"""Tests of help texts, usage errors and lazy imports."""

import re
import subprocess
import sys
from collections.abc import Iterable
from itertools import pairwise

import pytest

from plan_adapter.cli.app import ADMIN_GROUPS, GROUPS, VERBS
from plan_adapter.cli.renamed import current_names
from tests.cli.conftest import Plan

COMMANDS = [name for verb in VERBS.values() for name in verb.commands]

HEAVY = ("prefect", "sqlalchemy", "yaml", "rich", "cel_expr_python", "httpx", "pydantic", "openai", "json_repair")


def imported_by(*arguments: str) -> set[str]:
    """Run `plan ARGUMENTS` in a new process and return the heavy libraries that it imported."""
    script = (
        "import sys\nfrom plan_adapter.cli.app import main\n"
        f"main({list(arguments)!r})\nprint('\\n' + ' '.join(name for name in {HEAVY!r} if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("word", ["--help", "-h", "help"])
def test_help_groups_the_verbs_by_activity(plan: Plan, word: str) -> None:
    result = plan(word)
    assert result.code == 0
    assert verbs_of(result.out, GROUPS) == {
        "Write": ["init", "validate", "preview", "test", "draft", "save"],
        "Run": ["run", "replay", "deploy", "serve"],
        "Decide": ["gates", "approve", "answer", "reject", "resolve", "desk"],
        "Look": ["runs", "show", "report", "diff", "logs", "guide"],
        "Repair": ["resume", "revise", "cancel", "rollback", "doctor"],
    }
    assert max(len(line) for line in result.out.splitlines()) <= 90


def verbs_of(text: str, groups: Iterable[str]) -> dict[str, list[str]]:
    shown = {title: found.split("\n\n")[0] for title in groups for found in [text.partition(f"\n\n{title}:\n")[2]]}
    return {title: [line.split()[0] for line in found.splitlines()] for title, found in shown.items()}


@pytest.mark.parametrize("words", [("admin",), ("admin", "--help")])
def test_the_other_verbs_are_those_of_admin(plan: Plan, words: tuple[str, ...]) -> None:
    result = plan(*words)
    assert (result.code, verbs_of(result.out, ADMIN_GROUPS)) == (
        0,
        {
            "Plans": ["promote", "import", "pursue", "graph", "schema", "tools", "explain"],
            "Permission": ["standing", "enroll", "policy"],
            "Records": ["verify", "audit", "export", "prune", "erase", "store"],
            "Servers": ["reconcile", "notify", "down", "mcp"],
        },
    )
    first = plan("--help").out
    assert all(f" {name}" in first for name in VERBS)
    assert plan("admin", "explain", "cycle").out == plan("explain", "cycle").out


OLD = (
    (["runs", "verify", "RUN"], ["verify", "RUN"]),
    (["store", "verify"], ["verify"]),
    (["versions", "done"], ["show", "--versions", "done"]),
    (["undeploy", "done"], ["deploy", "--delete", "done"]),
    (["cancel", "RUN", "--rollback", "--reason=why"], ["rollback", "RUN", "--note=why"]),
    (["cancel", "RUN", "--reason", "why"], ["cancel", "RUN", "--note", "why"]),
    (["resume", "RUN", "--skip", "a", "--because", "why"], ["resume", "RUN", "--skip", "a", "--note", "why"]),
    (["promote", "RUN", "--out", "x.yaml"], ["promote", "RUN", "--output", "x.yaml"]),
    (["draft", "task", "--tool", "bash", "--", "--tool"], ["draft", "task", "--allow-tool", "bash", "--", "--tool"]),
    (["serve", "x.yaml", "--limit", "2"], ["serve", "x.yaml", "--concurrency-limit", "2"]),
)


@pytest.mark.parametrize(("before", "now"), OLD, ids=lambda words: " ".join(words[:2]))
def test_old_names_still_work_and_say_what_is_new(before: list[str], now: list[str]) -> None:
    words, notes = current_names(before)
    assert words == now
    assert notes and all(" now; the old name works until the next minor version" in note for note in notes)
    assert current_names(now) == (now, [])


def test_a_note_about_an_old_name_goes_to_stderr(plan: Plan) -> None:
    before, now = plan("store", "verify", "--json"), plan("verify", "--json")
    assert (before.code, before.out) == (now.code, now.out) == (0, now.out)
    assert before.err == "`plan store verify` is called `plan verify` now; the old name works until the next minor version\n"


def first_word(line: str) -> str:
    """Return the first word of a line; code is one word."""
    found = re.match(r"[^\s`]*(?:`[^`]*`)?\S*", line)
    return found[0] if found else ""


def test_help_is_wrapped_between_words_and_names_the_arguments(plan: Plan) -> None:
    for name in COMMANDS:
        text = plan(*name.split(), "--help").out
        assert "[ARGS]" not in text, name
        usage, _, description = text.partition("╭")[0].partition("\n")
        paragraphs = [paragraph.splitlines() for paragraph in description.strip().split("\n\n")]
        short = [line for lines in paragraphs for line, after in pairwise(lines) if len(line) + len(first_word(after)) < 79]
        assert not short, (name, short)
        assert usage.startswith(f"Usage: plan {name}")
    assert plan("approve", "--help").out.startswith("Usage: plan approve [RUN] [STEP] [OPTIONS]\n")
    assert plan("validate", "--help").out.startswith("Usage: plan validate PLAN… [OPTIONS]\n")


def test_running_without_a_verb_prints_the_help(plan: Plan) -> None:
    assert plan().out == plan("--help").out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_help_text(plan: Plan, name: str) -> None:
    result = plan(*name.split(), "--help")
    assert result.code == 0
    assert result.out.startswith(f"Usage: plan {name}")
    assert "--json" in result.out
    assert plan("help", *name.split()).out == result.out


def test_the_help_of_a_verb_with_actions_lists_them(plan: Plan) -> None:
    result = plan("store", "--help")
    assert (result.code, result.out) == (
        0,
        "Usage: plan store [ACTION] …\n\nShow or upgrade the database of plans and runs.\n\nActions:\n"
        "  status   Show where it is and whether it can be used (the default)\n"
        "  upgrade  Upgrade it to this version\n"
        "  grants   Print the roles for PostgreSQL\n\n"
        "`plan store grants --help` explains an action.\n",
    )
    assert plan("help", "store").out == plan("admin", "store", "-h").out == result.out


@pytest.mark.parametrize(("action", "hint"), [("ad", "did you mean `add`?"), ("plan.yaml", "known: `add`, `list`, `revoke`")])
def test_an_unknown_action_names_the_actions(plan: Plan, action: str, hint: str) -> None:
    result = plan("standing", action)
    assert (result.code, result.err) == (2, f"plan: `plan standing` has no action `{action}`; {hint}\n")


def test_help_imports_nothing_heavy() -> None:
    assert imported_by("--help") == set()


def test_validating_a_plan_imports_neither_prefect_nor_a_database_nor_the_display() -> None:
    assert imported_by("init") | imported_by("validate", "plan.yaml") <= {"yaml", "cel_expr_python", "pydantic"}


def test_printing_a_prompt_imports_neither_openai_nor_prefect_nor_a_database() -> None:
    used = imported_by("draft", "Ask", "--allow-tool", "http_get", "--print-prompt")
    assert "pydantic" in used  # the prompt was built
    assert not used & {"openai", "prefect", "sqlalchemy", "rich"}


def test_an_unknown_verb_is_a_usage_error_that_suggests_the_nearest(plan: Plan) -> None:
    result = plan("validat", "plan.yaml")
    assert result.code == 2
    assert result.err == "plan: there is no verb `validat`; did you mean `validate`?\n"
    assert result.out == ""


@pytest.mark.parametrize(
    "arguments",
    [("run",), ("run", "a", "b"), ("explain", "cycle", "--jsn"), ("runs", "--limit", "many"), ("--bogus",), ("validate",)],
    ids=" ".join,
)
def test_a_usage_error_is_one_line_and_exit_code_2(plan: Plan, arguments: tuple[str, ...]) -> None:
    result = plan(*arguments)
    assert result.code == 2
    assert len(result.err.splitlines()) == 1
    assert result.err.startswith("plan: ")
    assert result.out == ""


@pytest.mark.parametrize("value", ["sre=ana", '["ana"]', '{"sre": "ana"}', '{"sre": [7]}', ""])
def test_invalid_settings_are_explained_without_showing_their_values(plan: Plan, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_GROUPS", value)
    monkeypatch.setenv("PLAN_ADAPTER_LEASE_SECONDS", "soon")
    result = plan("gates", "--json")
    groups = 'PLAN_ADAPTER_GROUPS: write JSON that lists the members of each group, as in {"sre": ["ana", "bo"]}'
    lease = "PLAN_ADAPTER_LEASE_SECONDS: must be a number"
    assert (result.code, result.err, result.run["error"]) == (2, f"plan: {lease}; {groups}\n", "settings")


def test_a_usage_error_is_a_json_object_with_the_json_option(plan: Plan) -> None:
    result = plan("explain", "cyle", "--json")
    assert result.code == 2
    message = "no problem has the code `cyle`; did you mean `cycle`?"
    hint = "did you mean `cycle`?"
    assert result.lines == [{"type": "error", "code": "usage", "message": message, "hint": hint, "at": None, "error": "usage"}]


def test_the_version_is_printed(plan: Plan) -> None:
    assert plan("--version").out.startswith("plan 0.")


def test_shell_completion_lists_the_verbs(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> None:
    script = tmp_path_factory.mktemp("completion") / "plan.bash"
    from plan_adapter.cli.app import build_app

    build_app().install_completion(shell="bash", output=script, add_to_startup=False)
    assert "validate" in script.read_text()
