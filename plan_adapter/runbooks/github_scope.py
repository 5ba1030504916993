"""What the expressions of a workflow refer to, as values of a plan."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from plan_adapter.runbooks.conversion import Document, NotConvertibleError, Report, StandIns, as_expression, literal, mapping, prose
from plan_adapter.runbooks.github_expressions import (
    Condition,
    Kind,
    Path,
    Value,
    concatenate,
    parameter_text,
    pieces,
    translate,
    translate_condition,
)

KINDS: Mapping[str, Kind] = {"string": "string", "boolean": "bool", "number": "number"}

OUTPUTS = {"GITHUB_OUTPUT": "/dev/stdout", "GITHUB_ENV": "/dev/stdout", "GITHUB_STEP_SUMMARY": "/dev/stdout", "GITHUB_PATH": "/dev/null"}
"""The files of a runner that scripts write to, and what they are here: a step's result contains its output."""

_RUNNER = {"os": "Linux", "arch": "X64", "temp": "/tmp", "debug": ""}  # noqa: S108  # the folder that scripts expect
_RUNNER_VARIABLE = re.compile(r"(?:\$\{?|environ\W+|getenv\W+|env[.:])((?:GITHUB|RUNNER)_[A-Z_]+)\b")
_SECRET = re.compile(r"\bsecrets\.([A-Za-z_]\w*)")
_UNKNOWN = frozenset({"github", "vars", "env", "runner", "matrix", "strategy"})


@dataclass(frozen=True, slots=True)
class ProducedStep:
    """The plan step that a workflow's step became, and whether it may be skipped."""

    step_id: str
    may_be_skipped: bool
    long_outputs: frozenset[str] = frozenset()  # written over several lines, which cannot be read

    def output(self, name: str) -> Value:
        """Return the output `name`, which the script prints as `name=value`."""
        result = f"steps.{self.step_id}.result.stdout"
        start = literal(f"{name}=")
        lines = f"({result} + '\\n' + {start}).split('\\n').filter(line, line.startsWith({start}))"
        value = f"{lines}[0].substring({len(name) + 1})"
        return Value(f"(steps.{self.step_id}.status == 'completed' ? {value} : '')" if self.may_be_skipped else value, "string")


@dataclass(slots=True)
class WorkflowContext:
    """What all jobs of a workflow share: inputs, events, the report, and the steps so far by job and id."""

    report: Report
    events: tuple[str, ...]  # what starts the workflow; by hand first
    inputs: dict[str, Document] = field(default_factory=dict[str, Document])
    names: dict[str, str] = field(default_factory=dict[str, str])  # the workflow's names of inputs, and the plan's
    produced: dict[tuple[str, str], ProducedStep] = field(default_factory=dict[tuple[str, str], ProducedStep])
    outputs: dict[str, "Scope"] = field(default_factory=dict[str, "Scope"])  # by job: where its outputs are evaluated
    stand_ins: StandIns = field(init=False)

    def __post_init__(self) -> None:
        """Share the plan's inputs with the stand-ins."""
        self.stand_ins = StandIns(self.inputs)

    def as_input(self, source: str, at: str) -> Value:
        """Return an input for a value that only GitHub knows."""
        return Value(f"inputs.{self.stand_ins.name_of(source, re.sub('^vars[.]', '', source), at)}", "string")


@dataclass(slots=True)
class Scope:
    """What expressions mean at one place of a workflow. `combination` holds the matrix values, `env` the variables."""

    workflow: WorkflowContext
    job: str
    at: str
    declared_outputs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    env: dict[str, Value] = field(default_factory=dict[str, Value])
    combination: Mapping[str, Any] | None = None
    is_item: bool = False  # the combinations are the items of a for_each

    def within(self, at: str, env: Any) -> "Scope":
        """Return the scope of a place inside this one, with its own variables."""
        own = replace(self, at=at, env=dict(self.env))
        if env is not None and not isinstance(env, dict):
            self.workflow.report.add("left out", f"`env: {prose(env)}`: write the variables", at)
        for name, value in mapping(env).items():
            own.env[name] = self.value_of(value)
        return own

    def value_of(self, value: Any) -> Value:
        """Return the value of a scalar that may contain expressions."""
        if not isinstance(value, str):
            return Value.of(value if isinstance(value, bool | int | float) else "")
        parts = [self.expression(part) if is_code else Value.of(part) for part, is_code in pieces(value)]
        return concatenate(parts) if parts else Value.of("")

    def text(self, value: Any) -> str:
        """Return a scalar as the text of a parameter."""
        if not isinstance(value, str):
            return parameter_text(self.value_of(value))
        return "".join(parameter_text(self.expression(part)) if is_code else part for part, is_code in pieces(value))

    def expression(self, source: str) -> Value:
        """Return the value of an expression. What cannot be translated becomes an input, or a secret if it is made of secrets."""
        secret = _SECRET.search(source)
        try:
            # CEL would need every secret of an `a || b`.
            found = None if secret is not None and "||" in source else translate(source, self.resolve)
        except NotConvertibleError:
            found = None
        if found is not None:
            return found
        if secret is None:
            return self.workflow.as_input(source, self.at)
        self.workflow.report.add("changed", f"`{source}` is the secret `{secret[1]}` here", self.at)
        return Value(f"secrets.{secret[1]}", "string")

    def condition(self, source: Any) -> Condition:
        """Return the condition of an `if`. Raises NotConvertibleError."""
        if isinstance(source, bool):
            return Condition(Value.of(source), frozenset())
        found = translate_condition(str(source), self.resolve)
        if _SECRET.search(found.value.code):
            raise NotConvertibleError("a condition cannot use a secret")
        return found

    def resolve(self, path: Path) -> Value:
        """Return the value of a context. Raises NotConvertibleError."""
        match path:
            case ("inputs", name) | ("github", "event", "inputs", name) if name in self.workflow.names:
                known = self.workflow.names[name]
                return Value(f"inputs.{known}", KINDS.get(str(self.workflow.inputs[known].get("type")), "string"))
            case ("env", name) if name in self.env:
                return self.env[name]
            case ("matrix", name) if self.combination is not None and name in self.combination:
                return self._matrix_value(name, self.combination[name])
            case ("matrix", name, key) if self.combination is not None and isinstance(self.combination.get(name), dict):
                return self._matrix_value(f"{name}.{key}", self.combination[name].get(key))
            case ("matrix", *_) if self.combination is not None:
                return Value.of("")
            case ("secrets", name):
                return self._secret(name)
            case ("github", "token"):
                return self._secret("GITHUB_TOKEN")
            case ("github", "event_name"):
                return self._event_name()
            case ("runner", name) if name in _RUNNER:
                self.workflow.report.add("changed", f"`runner.{name}` is always `{_RUNNER[name]}`", self.at)
                return Value.of(_RUNNER[name])
            case ("steps", step, "outputs", name):
                return self._output(step, name, ".".join(path))
            case ("needs" | "jobs", job, "outputs", name) if job in self.workflow.outputs:
                other = self.workflow.outputs[job]
                declared = other.declared_outputs.get(name)
                return self.workflow.as_input(".".join(path), self.at) if declared is None else other.value_of(declared)
            case ("needs", _, "result") | ("job", "status"):
                return Value.of("success")  # a step runs only if everything that it waits for was successful
            case _ if path[0] in _UNKNOWN or path[2:3] == ("outputs",):
                return self.workflow.as_input(".".join(path), self.at)
            case _:
                raise NotConvertibleError(f"`{'.'.join(path)}` has no equivalent")

    def _event_name(self) -> Value:
        events = self.workflow.events
        if len(events) == 1:
            self.workflow.report.add("changed", f"`github.event_name` is always `{events[0]}`", self.at)
            return Value.of(events[0])
        value = self.workflow.as_input("github.event_name", self.at)
        self.workflow.inputs[value.code.removeprefix("inputs.")] |= {"enum": [*events], "default": events[0]}
        return value

    def _matrix_value(self, name: str, value: Any) -> Value:
        if self.is_item:
            return Value(f"item.{name}" if re.fullmatch(r"[A-Za-z_][\w.]*", name) else f"item[{literal(name)}]", "dyn")
        return self.value_of(value)

    def _secret(self, name: str) -> Value:
        self.workflow.report.add("changed", f"the secret `{name}` is read from your own secrets: `plan guide operating`", self.at)
        return Value(f"secrets.{name}", "string")

    def _output(self, step: str, name: str, source: str) -> Value:
        produced = self.workflow.produced.get((self.job, step))
        if produced is None or name in produced.long_outputs:
            return self.workflow.as_input(source, self.at)
        return produced.output(name)

    def add_runner_variables(self, script: str, env: dict[str, str]) -> None:
        """Add to `env` the variables that a runner sets and `script` uses."""
        for name in sorted(set(_RUNNER_VARIABLE.findall(script)) - {"GITHUB_TOKEN"} - env.keys()):
            if name in OUTPUTS:
                env[name] = OUTPUTS[name]
                if name == "GITHUB_PATH":
                    self.workflow.report.add(
                        "left out", "what is added to `$GITHUB_PATH`, because each step has its own environment", self.at
                    )
            else:
                root, _, rest = name.lower().partition("_")
                value = self.resolve((root, rest))
                env[name] = value.text if value.text is not None else as_expression(value.code)
