"""Reads test files: finds them, and returns their cases or every problem with its line and column."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import JsonValue

from plan_adapter.documents import is_test_file, read_file, read_located
from plan_adapter.gates.approval import requires_approval
from plan_adapter.gates.policy import effective_policy
from plan_adapter.loading import pin_files, pin_stored
from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import InvalidPlanError
from plan_adapter.model.options import CallKind
from plan_adapter.model.plan import ExecutionPlan, flattened
from plan_adapter.model.problems import Problem
from plan_adapter.model.values import join
from plan_adapter.testing.case import PLAN, Answer, Answers, Case, GateAnswer
from plan_adapter.testing.expectations import ExpectationReader, FieldReader
from plan_adapter.testing.recorded import with_recorded_tools
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.twins import run_sync
from plan_adapter.validation import BoundPlan, ValidatedPlan, bind_inputs, find_problems, validate
from plan_adapter.validation.inputs import read_values

_SHARED = ("inputs", "steps", "rollbacks", "gates", "answers")
_CALL_FIELDS: Mapping[CallKind, str] = {"step": "steps", "rollback": "rollbacks"}
_ENDINGS = (".yaml", ".yml", ".json")
_EXAMPLE = "write `cases:` and under it `it works: {}`"

_Calls: TypeAlias = dict[tuple[CallKind, str], Answers]
_Gates: TypeAlias = dict[str, tuple[GateAnswer, ...]]


def find_test_files(paths: Iterable[str | Path]) -> list[Path]:
    """Return the test files that `paths` name: files, the test file beside a plan, and all test files in a folder and its subfolders.

    Raises FileNotFoundError, whose text says what is missing, for a path without one.
    """
    found = list[Path]()
    for path in map(Path, paths):
        if path.is_dir():
            inside = sorted(file for file in path.rglob("*.test.y*ml") if is_test_file(file) and not _is_hidden(file.relative_to(path)))
            if not inside:
                raise FileNotFoundError(f"{path} has no test files (NAME.test.yaml)")
            found += inside
        elif is_test_file(path):
            found.append(path)
        else:
            found.append(_test_file_of(path))
    return list(dict.fromkeys(found))


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _test_file_of(plan: Path) -> Path:
    beside = [plan.with_name(f"{plan.stem}{ending}") for ending in (".test.yaml", ".test.yml")]
    file = next((path for path in beside if path.is_file()), None)
    if file is None:
        raise FileNotFoundError(f"there is no {beside[0].name} beside {plan}" if plan.exists() else f"{plan} does not exist")
    return file


def plan_file_of(test_file: Path) -> Path:
    """Return the path of the plan that `test_file` tests: `restart.yaml` for `restart.test.yaml`. It may not exist."""
    name = test_file.name[: test_file.name.lower().rindex(".test.")]
    beside = [test_file.with_name(name + ending) for ending in _ENDINGS]
    return next((path for path in beside if path.is_file()), beside[0])


def load_cases(path: str | Path, *, tools: ToolRegistry | None = None) -> list[Case]:
    """Return the cases of a test file. Without `tools`, the plan can use those of the settings and the built-in ones.

    Raises InvalidPlanError with every problem of the test file and its plan.
    """
    file = Path(path)
    values, problems, locate = read_located(file)
    if values is None:
        raise InvalidPlanError(problems)
    plan, plan_problems, validated = _read_plan(plan_file_of(file), tools or ToolRegistry.from_settings(Settings().tools))
    reader = _CaseReader(plan, validated)
    cases = reader.cases(values)
    known = {problem.at for problem in problems}
    problems += [locate(problem) for problem in dict.fromkeys(reader.problems) if problem.at not in known]
    if problems or plan_problems:
        raise InvalidPlanError([*plan_problems, *sorted(problems, key=lambda problem: (problem.line or 0, problem.column or 0))])
    return [replace(case, file=file, line=locate(Problem("", at=join("cases", case.name))).line or 1) for case in cases]


def _read_plan(path: Path, tools: ToolRegistry) -> tuple[ExecutionPlan | None, list[Problem], ValidatedPlan | None]:
    plan, problems = read_file(path)
    if plan is None:
        return None, problems, None
    if stored := pin_files(plan):
        run_sync(pin_stored(stored), twin="pin_stored")
    if problems := find_problems(plan, tools):
        return plan, problems, None
    return plan, [], with_recorded_tools(validate(_with_answerable_gates(plan), tools))


def _with_answerable_gates(plan: ExecutionPlan) -> ExecutionPlan:
    """Return `plan` changed so that a case can answer every gate and start every run, and no model is asked."""
    anyone: dict[str, Any] = {"approvers": [], "operators": [], "known_by": [], "self_approval": True, "remind_after_ms": 0}
    changed = plan.model_copy(deep=True)
    changed.on_failure = None
    for each in changed.plans.values():
        each.approval = None if each.approval is None else each.approval.model_copy(update=anyone)
    return changed


@dataclass(frozen=True, slots=True)
class _SharedFields:
    """What a file and its cases have in common: inputs, and the answers to calls, at gates and to questions."""

    inputs: dict[str, JsonValue]
    calls: _Calls
    gates: _Gates
    answers: dict[str, JsonValue]


class _CaseReader(FieldReader):
    """Reads the content of a test file. Without a plan, whatever depends on it is not checked."""

    def __init__(self, plan: ExecutionPlan | None, validated: ValidatedPlan | None) -> None:
        super().__init__(None if plan is None else [step.id for step in plan.all_steps])
        self._plan = plan
        self._validated = validated
        policy = effective_policy(Settings.model_construct())
        self._has_plan_gate = plan is None or requires_approval(plan, policy)

    def cases(self, values: dict[str, JsonValue]) -> list[Case]:
        """Return the cases. Those with problems are missing."""
        self.report_unknown(values, "", (*_SHARED, "cases"), "a test file")
        shared = self._read_shared(values, "")
        written = self.mapping(values.get("cases"), "cases")
        if not written and "cases" not in {problem.at for problem in self.problems}:
            self.report("missing-field", "cases", "the file has no cases", _EXAMPLE)
        found = [self._read_case(name, value, shared) for name, value in written.items()]
        return [case for case in found if case is not None]

    def _read_case(self, name: str, value: JsonValue, shared: "_SharedFields") -> Case | None:
        at = join("cases", name)
        fields = self.mapping(value, at)
        if not isinstance(value, dict | None):
            return None
        self.report_unknown(fields, at, (*_SHARED, "expect"), "a case")
        own = self._read_shared(fields, at)
        expect = ExpectationReader(self).expectation(fields.get("expect"), join(at, "expect"))
        bound = self._bind({**shared.inputs, **own.inputs}, at, own=own.inputs)
        if bound is None:
            return None
        calls, gates, answers = shared.calls | own.calls, shared.gates | own.gates, shared.answers | own.answers
        return Case(name, Path(), 0, bound, calls, gates, answers, expect)

    def _bind(self, inputs: dict[str, JsonValue], at: str, *, own: Mapping[str, JsonValue]) -> BoundPlan | None:
        if self._validated is None:
            return None
        _, problems = read_values(self._validated.plan.inputs, inputs, from_text=False)
        for problem in problems:
            is_missing = problem.code == "missing-input"
            place = at if is_missing else join(at, problem.at) if problem.at.split(".")[1] in own else problem.at
            self.report(problem.code, place, problem.message, "write it under `inputs`" if is_missing else problem.hint)
        return None if problems else bind_inputs(self._validated, inputs)

    def _read_shared(self, fields: dict[str, JsonValue], at: str) -> "_SharedFields":
        """Return the fields that a file and a case have in common."""
        calls: _Calls = {}
        for kind, name in _CALL_FIELDS.items():
            for step_id, value in self.by_step(fields.get(name), join(at, name)).items():
                answers = self._read_answers(value, join(join(at, name), step_id), step_id, kind)
                if answers is not None:
                    calls[kind, step_id] = answers
        gates: _Gates = {}
        for name, value in self.by_step(fields.get("gates"), join(at, "gates"), also=(PLAN,)).items():
            gates[name] = self._read_gate_answers(value, join(join(at, "gates"), name), name)
        given = self.by_step(fields.get("answers"), join(at, "answers")).items()
        answers = {step_id: self._question_answer(value, join(join(at, "answers"), step_id), step_id) for step_id, value in given}
        return _SharedFields(self.mapping(fields.get("inputs"), join(at, "inputs")), calls, gates, answers)

    def _question_answer(self, value: JsonValue, at: str, step_id: str) -> JsonValue:
        """Return the answer to a question, and report what does not fit its fields."""
        question = None if self._plan is None else self._plan.step(step_id).ask
        if question is None:
            if self._plan is not None:
                self.report("bad-answer", at, f"`{step_id}` asks no question", "answer its call under `steps`")
            return value
        for problem in read_values(question.fields, self.mapping(value, at), from_text=False, what="field")[1]:
            self.report(problem.code, join(at, problem.at.removeprefix("fields.")), problem.message, problem.hint)
        return value

    # Answers to calls.

    def _read_answers(self, value: JsonValue, at: str, step_id: str, kind: CallKind) -> Answers | None:
        step = None if self._plan is None else self._plan.step(step_id)
        if step is not None and step.inner:
            inner_step = next(inner_step for inner_step in flattened(step.inner) if not inner_step.inner)
            what = "runs a plan" if step.plan is not None else "is a group"
            self.report(
                "bad-answer", at, f"`{step_id}` {what} and calls no tool", f"answer the calls of its steps, such as `{inner_step.id}`"
            )
            return None
        if step is not None and kind == "rollback" and step.rollback is None:
            self.report("bad-answer", at, f"`{step_id}` has no rollback", "remove it, or write a `rollback` in the plan")
        if step is not None and kind == "step" and step.ask is not None:
            self.report("bad-answer", at, f"`{step_id}` asks a question", f"write `answers: {{{step_id}: {{field: value}}}}`")
        by_item = self._has_items(step_id) and isinstance(value, list)
        if by_item and isinstance(value, list):
            calls = tuple(self._read_attempts(part, join(at, index), step_id) for index, part in enumerate(value))
        else:
            calls = (self._read_attempts(value, at, step_id),)
        return Answers(calls, by_item)

    def _has_items(self, step_id: str) -> bool:
        step = None if self._plan is None else self._plan.step(step_id)
        return step is not None and (step.for_each is not None or step.group is not None)

    def _read_attempts(self, value: JsonValue, at: str, step_id: str) -> tuple[Answer, ...]:
        if not isinstance(value, list):
            return (self._read_answer(value, at, step_id),)
        if not value:
            self.report("bad-answer", at, "the list of answers is empty", "write one for each attempt: `[{failure: …}, {result: …}]`")
        return tuple(self._read_answer(part, join(at, index), step_id) for index, part in enumerate(value))

    def _read_answer(self, value: JsonValue, at: str, step_id: str) -> Answer:
        fields = self.mapping(value, at, "an answer: `result`, `failure` or `timeout`")
        if not isinstance(value, dict):
            return Answer()
        self.report_unknown(fields, at, ("result", "failure", "timeout"), "an answer")
        if len(fields) != 1:
            found = " and ".join(f"`{name}`" for name in fields) or "nothing"
            self.report(
                "bad-answer", at, f"an answer is one of `result`, `failure` and `timeout`, and this has {found}", "write one of them"
            )
        if "timeout" in fields:
            self._check_timeout(fields["timeout"], join(at, "timeout"), step_id)
        failure = self.text(fields["failure"], join(at, "failure")) if "failure" in fields else None
        return Answer(fields.get("result"), failure, is_timeout="timeout" in fields)

    def _check_timeout(self, value: JsonValue, at: str, step_id: str) -> None:
        if value is not True:
            self.report("bad-value", at, "`timeout` must be true", "write `timeout: true`, or another answer")
        if self._validated is None:
            return
        limit = self._validated.plan.timeout_ms_of(self._validated.steps[step_id]) or self._validated.tools[step_id].timeout_seconds
        if not limit:
            self.report("bad-answer", at, f"`{step_id}` has no timeout", "write `timeout_ms` on the step, or another answer here")

    # Answers at gates.

    def _read_gate_answers(self, value: JsonValue, at: str, name: str) -> tuple[GateAnswer, ...]:
        if self._validated is not None and not self._has_gate(name, self._validated):
            what = "the plan" if name == PLAN else f"`{name}`"
            self.report(
                "bad-answer", at, f"{what} has no gate, so nobody is asked", "remove the answer, or require an approval in the plan"
            )
        several = value if isinstance(value, list) and name != PLAN and self._has_items(name) else [value]
        return tuple(self._read_gate_answer(part, join(at, index) if several is value else at) for index, part in enumerate(several))

    def _has_gate(self, name: str, validated: ValidatedPlan) -> bool:
        return self._has_plan_gate if name == PLAN else validated.has_gate(validated.steps[name])

    def _read_gate_answer(self, value: JsonValue, at: str) -> GateAnswer:
        answer = self.choice(value, at, ("approve", "reject", "expire"))
        if (
            answer == "expire"
            and self._plan is not None
            and not any(plan.options.approval_timeout_ms for plan in self._plan.plans.values())
        ):
            message = "the gates of this plan never expire, because options.approval_timeout_ms is 0"
            self.report("bad-answer", at, message, "set it in the plan, or write another answer")
        return answer or "approve"
