"""What earlier commits stored, digested and printed is read, computed and printed the same. See `tests/golden/__init__.py`."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plan_adapter.model.plan import ExecutionPlan, Step
from tests.golden import digests, session, words

PLANS = digests.golden_plans()
ACTED = json.loads(session.ACTED.read_text(encoding="utf-8"))
READ = json.loads(session.READ.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def acted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the commands of the session print in a new store."""
    with session.home(tmp_path_factory.mktemp("acted")):
        return session.played()[0]


@pytest.fixture(scope="module")
def golden_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The home of the golden store, which no test changes."""
    with session.home(tmp_path_factory.mktemp("read")) as folder:
        session.restored(folder / "home/plans.db")
        yield folder


@pytest.mark.parametrize("golden", PLANS, ids=[plan["name"] for plan in PLANS])
def test_the_digests_of_a_plan_stay(golden: dict[str, Any]) -> None:
    name, given = golden.pop("name"), golden.pop("given")
    assert digests.digests_of(given) == golden, name


def test_the_golden_plans_have_every_field() -> None:
    steps = {field for plan in PLANS for step in [*plan["document"]["steps"], *plan["document"].get("finally", [])] for field in step}
    names = lambda model: {field.alias or name for name, field in model.model_fields.items()}  # noqa: E731
    assert names(ExecutionPlan) - {field for plan in PLANS for field in plan["document"]} == {"version"}  # its only value is its default
    assert names(Step) - steps == set()


@pytest.mark.parametrize("label", [label for label, _ in session.ACTS])
def test_a_command_that_changes_something_prints_the_same(acted: dict[str, Any], label: str) -> None:
    assert_kept(ACTED[label], acted[label])


@pytest.mark.parametrize("command", session.READS)
def test_a_command_that_reads_the_golden_store_prints_the_same(golden_home: Path, command: str) -> None:
    golden, found = READ["printed"][command], session.read([command], READ["runs"])[command]
    if (key := {"tools": "name", "explain": "code"}.get(command)) is not None:  # there may be new ones
        names = {json.loads(line)[key] for line in golden["out"].splitlines()}
        found["out"] = "".join(line for line in found["out"].splitlines(keepends=True) if json.loads(line)[key] in names)
    assert_kept(golden, found)


def assert_kept(golden: dict[str, Any], found: dict[str, Any]) -> None:
    """Assert that a command printed what it printed before. Its objects may have more fields."""
    found = {**found, "err": _without_old_names(found["err"])}
    golden = {**golden, **{name: _with_argument(golden[name]) for name in ("out", "err")}}
    before, now = ({**printed, "out": [_parsed(line) for line in printed["out"].splitlines()]} for printed in (golden, found))
    assert {**now, "out": _common(now["out"], before["out"])} == before


def _without_old_names(err: str) -> str:
    """Return stderr without the lines that say what a verb or an option is called now."""
    return "".join(line for line in err.splitlines(keepends=True) if not line.endswith("the old name works until the next minor version\n"))


def _with_argument(text: str) -> str:
    """Return `text` with the step of an answer as an argument, as commands have it now."""
    return re.sub(r"(plan (?:approve|reject) \S+) --step ", r"\1 ", text)


def _parsed(line: str) -> Any:
    try:
        parsed = json.loads(re.sub(r": <\w+>", ": 0", line))
    except ValueError:  # a document
        return line
    if isinstance(parsed, dict) and parsed.get("code") == "unknown-tool":  # its hint lists tools, and there may be new ones
        parsed.pop("hint", None)
    return parsed


def _common(value: Any, golden: Any) -> Any:
    """Return `value` without the fields that `golden` lacks."""
    if isinstance(value, dict) and isinstance(golden, dict):
        return {key: _common(inner, golden[key]) for key, inner in value.items() if key in golden}
    if isinstance(value, list) and isinstance(golden, list) and len(value) == len(golden):
        return [_common(inner, of_golden) for inner, of_golden in zip(value, golden, strict=True)]
    return value


GO_ON = (
    ("approve {waiting} --yes", 0),
    ("resume {waiting} --offline", 10),  # the folder is another one, which nobody has approved
    ("resume {waiting} --offline --here", 6),
    ("approve {waiting} as gates says", 0),
    ("resume {waiting} --offline", 6),  # up to the gate of its step
    ("approve {waiting} --step ship --yes", 0),
    ("resume {waiting} --offline", 0),
    ("run store:done --offline --input who=bob", 0),
    ("store verify", 0),
)
"""Commands for runs of the golden store, and their exit codes."""


def test_runs_of_the_golden_store_go_on_and_their_records_verify(tmp_path: Path) -> None:
    with session.home(tmp_path):
        session.restored(tmp_path / "home/plans.db")
        for command, code in GO_ON:
            if command.endswith("as gates says"):
                gates = [json.loads(line) for line in session.typed("gates", {})["out"].splitlines()]
                run_id = command.split()[1].format(**READ["runs"])
                (command,) = [gate["command"].removeprefix("plan ") for gate in gates if gate["run_id"] == run_id]
            found = session.typed(command, READ["runs"])
            assert found["code"] == code, (command, found["err"])


@pytest.mark.parametrize("export", [session.EXPORT, session.OLD_EXPORT], ids=lambda path: path.name)
def test_a_golden_export_verifies_unless_it_is_changed(tmp_path: Path, export: Path) -> None:
    text = export.read_text(encoding="utf-8")
    with session.home(tmp_path):
        for written, code in ((text, 0), (text.replace("succeeded", "failed", 1), 1)):
            Path(export.name).write_text(written, encoding="utf-8")
            assert session.typed(f"runs verify {export.name}", {})["code"] == code


def test_the_stored_words_stay() -> None:
    golden, found = json.loads(words.FILE.read_text(encoding="utf-8")), json.loads(json.dumps(words.stored_words()))
    assert golden.keys() == found.keys()
    for kind, before in golden.items():
        assert _missing(before, found[kind]) == [], kind


def _missing(before: Any, after: Any) -> list[Any]:
    """Return the members of `before` that `after` lacks or has otherwise. `after` may have more."""
    if isinstance(before, dict):
        return [
            key
            for key in before
            if key not in after or (_missing(before[key], after[key]) if isinstance(before[key], list) else before[key] != after[key])
        ]
    return [word for word in before if word not in after]
