"""Reads test files: finds them, and returns their cases or every problem with its line and column."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeAlias, cast, get_args

from pydantic import BeforeValidator, Field, JsonValue, ModelWrapValidatorHandler, Tag, field_validator, model_validator

from plan_adapter.documents import is_test_file, read_file, read_typed
from plan_adapter.gates.approval import requires_approval
from plan_adapter.gates.policy import effective_policy
from plan_adapter.loading import pin_files, pin_stored
from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import InvalidPlanError
from plan_adapter.model.options import CallKind, DocumentModel
from plan_adapter.model.plan import ExecutionPlan, flattened
from plan_adapter.model.problems import Problem, type_error, value_error
from plan_adapter.model.values import join
from plan_adapter.testing.case import Answer, Answers, Case, GateAnswer
from plan_adapter.testing.expectations import (
    BY_KIND,
    LIST,
    OTHER,
    PLAN,
    Expectation,
    Parameters,
    StepId,
    StepOrPlan,
    empty_if_null,
    not_one_of,
)
from plan_adapter.testing.recorded import with_recorded_tools
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.twins import run_sync
from plan_adapter.validation import BoundPlan, ValidatedPlan, bind_inputs, find_problems, validate
from plan_adapter.validation.inputs import read_values

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
    file = test_file_of(plan)
    if not file.is_file():
        raise FileNotFoundError(f"there is no {file.name} beside {plan}" if plan.exists() else f"{plan} does not exist")
    return file


def test_file_of(plan: Path) -> Path:
    """Return the path of the test file beside a plan: `restart.test.yaml` for `restart.yaml`. It may not exist."""
    beside = [plan.with_name(f"{plan.stem}{ending}") for ending in (".test.yaml", ".test.yml")]
    return next((path for path in beside if path.is_file()), beside[0])


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
    plan, plan_problems, validated = _read_plan(plan_file_of(file), tools or ToolRegistry.from_settings(Settings().tools))
    written = read_typed(file, _TestFile, context=None if plan is None else [step.id for step in plan.all_steps])
    builder = _CaseBuilder(plan, validated)
    cases = builder.cases(written.value)
    if not written.value.cases and not any(problem.at.startswith("cases") for problem in written.problems):
        builder.report("missing-field", "cases", "the file has no cases", _EXAMPLE)
    problems = written.all_problems(builder.problems)
    if problems or plan_problems:
        raise InvalidPlanError([*plan_problems, *problems])
    return [replace(case, file=file, line=written.locate(Problem("", at=join("cases", case.name))).line or 1) for case in cases]


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
    anyone: dict[str, Any] = {"approvers": [], "operators": [], "known_by": [], "quorum": 1, "self_approval": True, "remind_after_ms": 0}
    changed = plan.model_copy(deep=True)
    changed.on_failure = None
    for each in changed.plans.values():
        each.approval = None if each.approval is None else each.approval.model_copy(update=anyone)
    return changed


class _AnswerFields(DocumentModel):
    """What one attempt gets."""

    noun: ClassVar[str] = "an answer"

    result: JsonValue = None
    failure: str = ""
    timeout: JsonValue = False

    @model_validator(mode="wrap")
    @classmethod
    def _check_shape(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Refuse what is not exactly one of the fields. Null is a call that returns nothing."""
        if value is None:
            return cls()
        if not isinstance(value, dict):
            raise type_error(_AN_ANSWER)
        fields = cast("dict[str, JsonValue]", value)
        if len(fields) != 1:
            found = " and ".join(f"`{name}`" for name in fields) or "nothing"
            message = f"an answer is one of `result`, `failure` and `timeout`, and this has {found}"
            raise value_error("bad-answer", message, "write one of them")
        return handler(value)

    @field_validator("timeout")
    @classmethod
    def _check_timeout(cls, value: JsonValue) -> JsonValue:
        if value is not True:
            raise value_error("bad-value", "`timeout` must be true", "write `timeout: true`, or another answer")
        return value

    def answer(self) -> Answer:
        """Return the answer."""
        return Answer(self.result, self.failure if "failure" in self.model_fields_set else None, is_timeout=self.timeout is True)


_AN_ANSWER = "an answer: `result`, `failure` or `timeout`"

_Attempts: TypeAlias = Annotated[Annotated[_AnswerFields, Tag(OTHER)] | Annotated[list[_AnswerFields], Tag(LIST)], BY_KIND]
_AnswersOfStep: TypeAlias = Annotated[Annotated[_AnswerFields, Tag(OTHER)] | Annotated[list[_Attempts], Tag(LIST)], BY_KIND]
_GateAnswers: TypeAlias = Annotated[Annotated[GateAnswer, Tag(OTHER)] | Annotated[list[GateAnswer], Tag(LIST)], BY_KIND]


class _SharedFields(DocumentModel):
    """What a file and its cases have in common: inputs, and the answers to calls, at gates and to questions."""

    inputs: dict[str, JsonValue] = Field(default_factory=dict)
    steps: dict[StepId, _AnswersOfStep] = Field(default_factory=dict)
    rollbacks: dict[StepId, _AnswersOfStep] = Field(default_factory=dict)
    gates: dict[StepOrPlan, _GateAnswers] = Field(default_factory=dict)
    answers: dict[StepId, Parameters] = Field(default_factory=dict)


class _CaseFields(_SharedFields):
    """What a case may contain."""

    noun: ClassVar[str] = "a case"

    expect: Expectation = Field(default_factory=Expectation)


class _TestFile(_SharedFields):
    """What a test file may contain."""

    noun: ClassVar[str] = "a test file"
    names_fields: ClassVar[bool] = False

    cases: dict[str, Annotated[_CaseFields, BeforeValidator(empty_if_null)]] = Field(default_factory=dict)


class _CaseBuilder:
    """Makes cases of the content of a test file, and checks it against the plan. Without a plan, what depends on it is not checked."""

    def __init__(self, plan: ExecutionPlan | None, validated: ValidatedPlan | None) -> None:
        self.problems: list[Problem] = []
        self._plan = plan
        self._validated = validated
        policy = effective_policy(Settings.model_construct())
        self._has_plan_gate = plan is None or requires_approval(plan, policy)

    def report(self, code: str, at: str, message: str, hint: str = "") -> None:
        self.problems.append(Problem(code, at=at, message=message, hint=hint))

    def cases(self, file: _TestFile) -> list[Case]:
        """Return the cases. Those with problems are missing."""
        calls, gates = self._answers_in(file, "")
        found = [self._make_case(name, fields, file, calls, gates) for name, fields in file.cases.items()]
        return [case for case in found if case is not None]

    def _make_case(self, name: str, fields: _CaseFields, file: _TestFile, calls: _Calls, gates: _Gates) -> Case | None:
        at = join("cases", name)
        own_calls, own_gates = self._answers_in(fields, at)
        bound = self._bind({**file.inputs, **fields.inputs}, at, own=fields.inputs)
        if bound is None:
            return None
        answers = file.answers | fields.answers
        return Case(name, Path(), 0, bound, calls | own_calls, gates | own_gates, answers, fields.expect)

    def _bind(self, inputs: dict[str, JsonValue], at: str, *, own: Mapping[str, JsonValue]) -> BoundPlan | None:
        if self._validated is None:
            return None
        _, problems = read_values(self._validated.plan.inputs, inputs, from_text=False)
        for problem in problems:
            is_missing = problem.code == "missing-input"
            place = at if is_missing else join(at, problem.at) if problem.at.split(".")[1] in own else problem.at
            self.report(problem.code, place, problem.message, "write it under `inputs`" if is_missing else problem.hint)
        return None if problems else bind_inputs(self._validated, inputs)

    def _answers_in(self, fields: _SharedFields, at: str) -> tuple[_Calls, _Gates]:
        """Return the answers to calls and at gates that a file or a case contains, and check those to questions."""
        calls: _Calls = {}
        kinds: tuple[tuple[CallKind, str], ...] = (("step", "steps"), ("rollback", "rollbacks"))
        for kind, name in kinds:
            for step_id, value in getattr(fields, name).items():
                answers = self._answers_of_step(value, join(join(at, name), step_id), step_id, kind)
                if answers is not None:
                    calls[kind, step_id] = answers
        gates = {name: self._gate_answers(value, join(join(at, "gates"), name), name) for name, value in fields.gates.items()}
        for step_id, value in fields.answers.items():
            self._check_question_answer(value, join(join(at, "answers"), step_id), step_id)
        return calls, gates

    def _check_question_answer(self, value: dict[str, JsonValue], at: str, step_id: str) -> None:
        """Report what does not fit the fields of the question."""
        if self._plan is None:
            return
        question = self._plan.step(step_id).ask
        if question is None:
            self.report("bad-answer", at, f"`{step_id}` asks no question", "answer its call under `steps`")
            return
        for problem in read_values(question.fields, value, from_text=False, what="field")[1]:
            self.report(problem.code, join(at, problem.at.removeprefix("fields.")), problem.message, problem.hint)

    # Answers to calls.

    def _answers_of_step(self, value: _AnswersOfStep, at: str, step_id: str, kind: CallKind) -> Answers | None:
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
            calls = tuple(self._attempts(part, join(at, index), step_id) for index, part in enumerate(value))
        else:
            calls = (self._attempts(value, at, step_id),)
        return Answers(calls, by_item)

    def _has_items(self, step_id: str) -> bool:
        step = None if self._plan is None else self._plan.step(step_id)
        return step is not None and (step.for_each is not None or step.group is not None)

    def _attempts(self, value: _AnswerFields | Sequence[_Attempts], at: str, step_id: str) -> tuple[Answer, ...]:
        if isinstance(value, _AnswerFields):
            return (self._answer(value, at, step_id),)
        if not value:
            self.report("bad-answer", at, "the list of answers is empty", "write one for each attempt: `[{failure: …}, {result: …}]`")
        return tuple(self._answer(part, join(at, index), step_id) for index, part in enumerate(value))

    def _answer(self, value: _Attempts, at: str, step_id: str) -> Answer:
        if isinstance(value, list):
            self.report("wrong-type", at, f"this must be {_AN_ANSWER}, not a list")
            return Answer()
        answer = value.answer()
        if answer.is_timeout and self._validated is not None:
            step, tool = self._validated.steps[step_id], self._validated.tools[step_id]
            if not (self._validated.plan.timeout_ms_of(step) or tool.timeout_seconds):
                place = join(at, "timeout")
                self.report("bad-answer", place, f"`{step_id}` has no timeout", "write `timeout_ms` on the step, or another answer here")
        return answer

    # Answers at gates.

    def _gate_answers(self, value: _GateAnswers, at: str, name: str) -> tuple[GateAnswer, ...]:
        if self._validated is not None and not self._has_gate(name, self._validated):
            what = "the plan" if name == PLAN else f"`{name}`"
            self.report(
                "bad-answer", at, f"{what} has no gate, so nobody is asked", "remove the answer, or require an approval in the plan"
            )
        if isinstance(value, list) and (name == PLAN or not self._has_items(name)):
            self.report("bad-value", at, not_one_of(get_args(GateAnswer), value).message())
            return ()
        answers: list[GateAnswer] = value if isinstance(value, list) else [value]
        for index, answer in enumerate(answers):
            if answer == "expire" and not self._has_expiring_gates():
                message = "the gates of this plan never expire, because options.approval_timeout_ms is 0"
                place = join(at, index) if isinstance(value, list) else at
                self.report("bad-answer", place, message, "set it in the plan, or write another answer")
        return tuple(answers)

    def _has_gate(self, name: str, validated: ValidatedPlan) -> bool:
        return self._has_plan_gate if name == PLAN else validated.has_gate(validated.steps[name])

    def _has_expiring_gates(self) -> bool:
        return self._plan is None or any(plan.options.approval_timeout_ms for plan in self._plan.plans.values())
