"""Every code that is raised anywhere can be explained."""

import ast
from collections.abc import Iterator
from pathlib import Path

import plan_adapter
from plan_adapter.model.problems import CATALOGUE, Problem, did_you_mean

PACKAGE = Path(plan_adapter.__file__).parent
MAKERS = {"Problem", "add", "warn", "report", "_report", "RefusedError", "NotJSONError"}


def raised() -> Iterator[tuple[str, str]]:
    """Each literal problem code in the source, and its place."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            first = node.args[0]
            if name in MAKERS and isinstance(first, ast.Constant) and isinstance(first.value, str) and "-" in first.value:
                yield first.value, f"{path.name}:{node.lineno}"


def test_every_code_in_the_source_is_in_the_catalogue() -> None:
    unknown = {place: code for code, place in raised() if code not in CATALOGUE}
    assert unknown == {}


def test_every_entry_is_explained_in_sentences() -> None:
    assert all(text.endswith(".") and len(text) > 25 for text in CATALOGUE.values())


def test_a_problem_is_one_line_that_editors_can_link() -> None:
    problem = Problem("unknown-step", at="steps[2].depends_on[0]", message="no step is called `drian`", hint="did you mean `drain`?")
    assert str(problem) == "plan: error[unknown-step] at steps[2].depends_on[0]: no step is called `drian`; did you mean `drain`?"
    placed = Problem("syntax", line=3, column=7, file="a.yaml", message="no")
    assert str(placed) == "a.yaml:3:7: error[syntax]: no"


def test_a_suggestion_is_the_nearest_name_or_the_available_names() -> None:
    assert did_you_mean("Drian", ["drain", "check"]) == "did you mean `drain`?"
    assert did_you_mean("env", ["drain", "environment"]) == "did you mean `environment`?"
    assert did_you_mean("environment", ["drain", "env"]) == "did you mean `env`?"
    assert did_you_mean("d", ["drain", "check"]) == "known: `check`, `drain`"
    assert did_you_mean("xyz", ["drain", "check"]) == "known: `check`, `drain`"
    assert did_you_mean("xyz", []) == ""
    assert did_you_mean("certificate", ["verify", "verify.certificate"]) == "did you mean `verify.certificate`?"
    many = frozenset(f"step_{number}" for number in range(1000))
    assert did_you_mean("setp_77", many) == "did you mean `step_77`?"
    assert did_you_mean("something else", many).startswith("known: `step_0`, `step_1`, ")
