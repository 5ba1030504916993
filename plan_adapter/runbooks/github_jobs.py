"""Converts the jobs of a workflow of GitHub Actions to steps."""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from plan_adapter.readable import counted
from plan_adapter.runbooks.conversion import (
    Document,
    NotConvertibleError,
    as_expression,
    conjunction,
    ignore_failure,
    in_milliseconds,
    is_placeholder,
    literal,
    mapping,
    members,
    placeholder_step,
    prose,
    step_id,
)
from plan_adapter.runbooks.github_actions import reason_to_leave_out
from plan_adapter.runbooks.github_expressions import parameter_text
from plan_adapter.runbooks.github_scope import ProducedStep, Scope, WorkflowContext
from plan_adapter.runbooks.github_scripts import replace_expressions

MAX_EXPANDED = 50
"""The most steps that one job with a matrix becomes."""

_MINUTE = 60_000
_NOT_NEEDED: Mapping[str, str] = {
    "runs-on": "steps run where the plan runs",
    "permissions": "steps have the permissions of the worker",
    "container": "run the worker in this image, or write `docker run` in the scripts",
    "services": "start these services before the run, or in a step",
    "concurrency": "write `concurrency: {key, when_busy}` if runs must exclude each other",
}
_STEP_FIELDS = frozenset(
    {"id", "name", "uses", "with", "run", "env", "if", "working-directory", "shell", "timeout-minutes", "continue-on-error"}
)
_JOB_FIELDS = frozenset(
    {"name", "needs", "if", "env", "steps", "strategy", "outputs", "environment", "defaults", "timeout-minutes", "continue-on-error"}
    | {"uses", "with", "secrets", *_NOT_NEEDED}
)
_PROGRAMS = {"python": ["python3", "-c"], "pwsh": ["pwsh", "-Command"], "powershell": ["pwsh", "-Command"], "node": ["node", "-e"]}
_ASSIGNED = re.compile(r"(?:echo|printf)\s+[\"']?(\w+)=[^>]*>>\s*[\"']?\$\{?GITHUB_ENV")


@dataclass(slots=True)
class Jobs:
    """Collects the steps of a workflow's jobs. Add each job after the jobs that it needs."""

    workflow: WorkflowContext
    defaults: Mapping[str, Any]
    is_only_job: bool
    needed: frozenset[str]
    steps: list[Document] = field(default_factory=list[Document])
    _last_steps: dict[str, list[str]] = field(default_factory=dict[str, list[str]])  # by job
    _conditions: dict[str, str] = field(default_factory=dict[str, str])  # by job
    _left_out: set[str] = field(default_factory=set[str])  # the jobs that never run here
    _awaiting_approval: set[str] = field(default_factory=set[str])  # jobs whose approval their dependents must request

    def add(self, name: str, job: Mapping[str, Any], outer: Scope) -> None:
        """Append the steps of a job."""
        report = self.workflow.report
        if job.get("name"):
            report.add("left out", "the `name` of the job: its steps are named after its id", name)
        for key in job.keys() & _NOT_NEEDED.keys():
            report.add("left out", f"`{key}`: {_NOT_NEEDED[key]}", name)
        for key in job.keys() - _JOB_FIELDS:
            report.add("left out", f"`{key}`, which plans do not have", name)
        needs = [need for need in _as_texts(job.get("needs")) if need in self._last_steps]
        if (missing := [need for need in needs if need in self._left_out]) and "always()" not in str(job.get("if")):
            self._left_out.add(name)
            report.add("left out", f"the whole of it, because it needs `{missing[0]}`, which is left out", name)
        waits_for = list(dict.fromkeys(last for need in needs for last in self._last_steps[need]))
        inherited = conjunction(*(self._conditions[need] for need in needs))
        found = _Job(self, name, job, waits_for, inherited, outer, is_gated=not self._awaiting_approval.isdisjoint(needs))
        self._last_steps[name], self._conditions[name] = waits_for, found.condition
        if name in self._left_out:
            return
        if not found.may_run():
            self._left_out.add(name)
            return
        self._last_steps[name], self._conditions[name] = found.convert() or waits_for, found.condition
        if found.is_gate_due:
            self._awaiting_approval.add(name)

    def append(self, fields: Document, wanted: str) -> str:
        """Append a step, and return its id."""
        own = step_id(wanted, {str(step["id"]) for step in self.steps})
        self.steps.append({"id": own, **fields})
        return own


@dataclass(slots=True)
class _Job:
    jobs: Jobs
    name: str
    job: Mapping[str, Any]
    waits_for: list[str]
    condition: str
    outer: Scope
    is_gated: bool  # the job waits for an approval
    is_gate_due: bool = False  # no step that always runs has requested it yet

    def convert(self) -> list[str]:
        """Append the steps, and return the last ones."""
        scope = self.outer.within(self.name, None)
        self.is_gate_due = self.is_gated
        scope.job, scope.declared_outputs = self.name, mapping(self.job.get("outputs"))
        if "environment" in self.job:
            self.is_gated = self.is_gate_due = True
            named = mapping(self.job["environment"]).get("name", self.job["environment"])
            text = f"the environment `{prose(named)}` becomes an approval: the first step of the job waits at a gate"
            self.outer.workflow.report.add("changed", text, self.name)
        if "uses" in self.job:
            return [self._append_step(self._placeholder("uses", self.job, scope), self.name, self.waits_for, scope)]
        steps = [mapping(step) for step in members(self.job.get("steps"))]
        combinations = self._combinations()
        if combinations is None:
            return self._append_steps(steps, scope, "")
        return self._expand_matrix(steps, combinations, scope)

    def may_run(self) -> bool:
        """Return whether the job may run here, and add its own condition to those of the jobs that it needs."""
        if "if" not in self.job:
            return True
        scope = self.outer.within(self.name, None)
        condition = self._convert_condition(self.job["if"], scope)
        self.is_gated = self.is_gated or self.is_gate_due
        if condition is None:
            return False
        self.condition = conjunction(self.condition, condition)
        return True

    def _convert_condition(self, source: Any, scope: Scope) -> str | None:
        """Return a condition: "" if it is always true, None if it is never true here. The latter is reported."""
        report = self.outer.workflow.report
        shown = prose(source)
        try:
            found = scope.condition(source)
        except NotConvertibleError as error:
            self.is_gate_due = True
            report.add("changed", f"`if: {shown}` is not translated ({error}); a person decides at a gate instead", scope.at)
            return ""
        if found.states & {"failure", "cancelled"} and found.value.constant != (False,):
            report.add("changed", f"`if: {shown}`: the part that holds after a failure is left out", scope.at)
        if "always" in found.states:
            report.add("changed", f"`if: {shown}`: runs only after the steps before it completed, not after a failure", scope.at)
        if found.value.constant is None:
            return found.value.code
        if found.value.constant == (True,):
            return ""
        report.add("left out", f"the whole of it, because `if: {shown}` is true only after a failure, or never here", scope.at)
        return None

    # The matrix.

    def _combinations(self) -> list[Document] | None:
        """Return the combinations of the matrix, or None if there are none, or if they are not known in advance."""
        strategy = self.job.get("strategy")
        if strategy is None:
            return None
        report, matrix = self.outer.workflow.report, mapping(strategy).get("matrix")
        for key in mapping(strategy).keys() - {"matrix"}:
            report.add("left out", f"`strategy.{key}`", self.name)
        if matrix is None:
            return None
        if not mapping(matrix) or not all(isinstance(values, list) for values in mapping(matrix).values()):
            report.add("changed", "the matrix is known only while a workflow runs; the job runs once, and its values are inputs", self.name)
            return None
        return combinations_of(mapping(matrix))

    def _expand_matrix(self, steps: list[Document], combinations: list[Document], scope: Scope) -> list[str]:
        report, before = self.outer.workflow.report, len(self.jobs.steps)
        real = [step for step in steps if "run" in step or reason_to_leave_out(str(step.get("uses", ""))) is None]
        if len(real) == 1 and not self.job.get("outputs") and "matrix" not in f"{real[0].get('if')} {self.job.get('if')}":
            keys = sorted({key for combination in combinations for key in combination})
            items = [{key: combination.get(key, "") for key in keys} for combination in combinations]
            if not any("${{" in literal(item) for item in items):
                scope.combination, scope.is_item = (items[0] if items else {}), True
                last, count = self._append_steps(steps, scope, ""), len(self.jobs.steps)
                for step in self.jobs.steps[before:]:
                    step |= {"for_each": as_expression(literal(items)), "label": _label(items)}
                if count > before:
                    report.add("kept", f"the matrix, as a `for_each` over {counted(len(items), 'combination')}", self.name)
                return last
        limit = max(1, MAX_EXPANDED // max(1, len(real)))
        if len(combinations) > limit:
            report.add("left out", f"{len(combinations) - limit} of {len(combinations)} combinations of the matrix", self.name)
        report.add(
            "changed", f"each of {counted(min(limit, len(combinations)), 'combination')} of the matrix has steps of its own", self.name
        )
        last = list[str]()
        for combination in combinations[:limit]:
            own = scope.within(self.name, None)
            own.combination = combination
            last += self._append_steps(
                steps, own, "_".join(str(value) for value in combination.values() if not isinstance(value, dict | list))
            )
        return last

    # The steps.

    def _append_steps(self, steps: Sequence[Document], scope: Scope, suffix: str) -> list[str]:
        """Append `steps`, each after the one before it, and return the last."""
        before, scope = self.waits_for, scope.within(self.name, self.job.get("env"))
        self.outer.workflow.outputs[self.name] = scope
        self.is_gate_due = self.is_gated
        for index, step in enumerate(steps):
            wanted = _step_name(step, index)
            at = f"{self.name}.{wanted}"
            for key in step.keys() - _STEP_FIELDS:
                self.outer.workflow.report.add("left out", f"`{key}`, which steps do not have", at)
            own = scope.within(at, step.get("env"))
            if hint := None if "run" in step else reason_to_leave_out(str(step.get("uses", ""))):
                given = ", ".join(mapping(step.get("with")))
                settings = f" with {given}" if given else ""
                self.outer.workflow.report.add("left out", f"`{step['uses']}`{settings}: {hint}", at)
                continue
            condition = self._convert_condition(step["if"], own) if "if" in step else ""
            if condition is None:
                continue
            fields = self._convert_script(step, own) if "run" in step else self._placeholder("uses", step, own)
            own_id = "_".join(filter(None, ["" if self.jobs.is_only_job else self.name, wanted, suffix]))
            is_last = index == len(steps) - 1 and self.name not in self.jobs.needed
            added = self._append_step(self._add_limits(step, fields, own, is_last=is_last), own_id, before, own, condition)
            before = [added]
            if step.get("id") and "run" in step:
                may_be_skipped = "when" in self.jobs.steps[-1]
                long = frozenset(re.findall(r"(\w+)<<", str(step.get("run", ""))))
                self.outer.workflow.produced[self.name, str(step["id"])] = ProducedStep(added, may_be_skipped, long)
            self._set_variables(step, added, scope)
        return before

    def _append_step(self, fields: Document, wanted: str, waits_for: list[str], scope: Scope, condition: str = "") -> str:
        if when := conjunction(self.condition, condition):
            fields["when"] = as_expression(when)
        if waits_for:
            fields["depends_on"] = waits_for
        if self.is_gate_due:
            # A step with a condition of its own may be skipped, and its gate with it: then the next step asks.
            fields["requires_approval"], self.is_gate_due = True, bool(condition)
        if self.job.get("continue-on-error", False) not in (True, False):
            text = f"`continue-on-error: {prose(self.job['continue-on-error'])}` of the job: a failure ends the run"
            self.outer.workflow.report.add("left out", text, self.name)
        if self.job.get("continue-on-error") is True:
            fields["on_error"] = "continue"
            text = "`continue-on-error` of the job: a failure skips the jobs that need it, and the others run"
            self.outer.workflow.report.add("changed", text, self.name)
        if self.job.get("timeout-minutes") is not None:
            hint = "set `timeout_ms` of the steps, or `options.total_timeout_ms`"
            self.outer.workflow.report.add(
                "left out", f"`timeout-minutes: {prose(self.job['timeout-minutes'])}` of the job; {hint}", self.name
            )
        return self.jobs.append(fields, wanted)

    def _placeholder(self, key: str, original: Mapping[str, Any], scope: Scope) -> Document:
        what, named = f"write what `{original.get(key)}` does", _description(original, scope)
        self.outer.workflow.report.add("left out", f"`{original.get(key)}`: a placeholder step replaces it", scope.at)
        return placeholder_step(
            f"{named}: {what}" if named else what, {**original, **({"matrix": scope.combination} if scope.combination else {})}
        )

    def _convert_script(self, step: Document, scope: Scope) -> Document:
        script = str(step["run"])
        shell = str(step.get("shell") or self._run_default("shell") or "bash").split()
        folder = step.get("working-directory") or self._run_default("working-directory")
        env = {name: parameter_text(value) for name, value in scope.env.items()}
        parameters: Document = {}
        try:
            if shell[0] in ("bash", "sh"):
                if shell[0] == "sh":
                    self.outer.workflow.report.add("changed", "`shell: sh`: the script runs in bash", scope.at)
                tool, parameters["command"] = "bash", replace_expressions(script, scope.expression, env)
                if parameters["command"] != script:
                    self.outer.workflow.report.add("changed", "values in the script are variables now, set in `env`", scope.at)
            elif shell[0] in _PROGRAMS and "${{" not in script:
                tool, parameters["argv"] = "run_command", [*_PROGRAMS[shell[0]], script]
                self.outer.workflow.report.add("changed", f"the script runs as `{' '.join(_PROGRAMS[shell[0]])} …`", scope.at)
            else:
                raise _unsupported_shell(shell[0])
        except NotConvertibleError as error:
            self.outer.workflow.report.add("left out", f"the script: {error}; a placeholder step replaces it", scope.at)
            return placeholder_step(f"{step.get('name') or 'script'}: {error}", step)
        scope.add_runner_variables(script, env)
        if folder:
            parameters["cwd"] = scope.text(folder)
        if env:
            parameters["env"] = env
        return {
            "tool_name": tool,
            "description": _description(step, scope) or prose(script.strip().partition("\n")[0]),
            "parameters": parameters,
        }

    def _run_default(self, key: str) -> Any:
        own = mapping(mapping(self.job.get("defaults")).get("run"))
        return own.get(key) or mapping(self.jobs.defaults.get("run")).get(key)

    def _add_limits(self, step: Document, fields: Document, scope: Scope, *, is_last: bool) -> Document:
        report = self.outer.workflow.report
        if (minutes := step.get("timeout-minutes")) is not None:
            if (timeout := in_milliseconds(minutes, _MINUTE)) is not None:
                fields["timeout_ms"] = timeout
            else:
                report.add("left out", f"`timeout-minutes: {prose(minutes)}`: write `timeout_ms`", scope.at)
        match step.get("continue-on-error"):
            case True if is_last:
                fields["on_error"] = "continue"
            case True if is_placeholder(fields):
                report.add("left out", "`continue-on-error`: add it when you write the placeholder step", scope.at)
            case True:
                ignore_failure(fields)
                report.add("changed", "`continue-on-error`: the script itself ignores its failure, so that the next steps run", scope.at)
            case None | False:
                pass
            case other:
                report.add("left out", f"`continue-on-error: {prose(other)}`: a failure stops the run", scope.at)
        return fields

    def _set_variables(self, step: Document, added: str, scope: Scope) -> None:
        """Give later steps the variables that the script of `step` writes to $GITHUB_ENV."""
        script = str(step.get("run", ""))
        names = _ASSIGNED.findall(script)
        if len(names) < len(re.findall(r"\$\{?GITHUB_ENV", script)):
            text = "some of what the script writes to `$GITHUB_ENV`: later steps do not see it"
            self.outer.workflow.report.add("left out", text, scope.at)
        for name in dict.fromkeys(names):
            scope.env[name] = ProducedStep(added, "when" in self.jobs.steps[-1]).output(name)
            self.outer.workflow.report.add("changed", f"`{name}`, written to `$GITHUB_ENV`, is read from the output of the step", scope.at)


def _unsupported_shell(shell: str) -> NotConvertibleError:
    reason = "contains expressions" if shell in _PROGRAMS else "is not known here"
    return NotConvertibleError(f"a script for `shell: {shell}` {reason}")


def combinations_of(matrix: Mapping[str, list[Any]]) -> list[Document]:
    """Return the combinations of a matrix, with its `include` and `exclude`."""
    axes = {str(key): values for key, values in matrix.items() if key not in ("include", "exclude")}
    excluded = [mapping(entry) for entry in matrix.get("exclude", [])]
    found = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())] if axes else []
    found = [
        combination
        for combination in found
        if not any(all(combination.get(key) == value for key, value in entry.items()) for entry in excluded)
    ]
    originals = [dict(combination) for combination in found]
    for entry in [mapping(entry) for entry in matrix.get("include", [])]:
        matching = [
            combination
            for combination, original in zip(found, originals, strict=False)
            if all(original[key] == value for key, value in entry.items() if key in original)
        ]
        if matching and axes:
            for combination in matching:
                combination.update(entry)
        else:
            found.append(dict(entry))
    return found


def _description(step: Mapping[str, Any], scope: Scope) -> str:
    """Return the name of a step, with its expressions filled in if their values are known."""
    known = None if scope.is_item or not step.get("name") else scope.value_of(str(step["name"])).text
    return prose(known or step.get("name") or "")


def _label(items: list[Document]) -> str:
    keys = [key for key in (items[0] if items else {}) if not isinstance(items[0][key], dict | list)]
    return "-".join(as_expression(f"item[{literal(key)}]") for key in keys) or "combination"


def _step_name(step: Document, index: int) -> str:
    if step.get("id"):
        return str(step["id"])
    words = step.get("name") or str(step.get("uses") or "").partition("@")[0].rpartition("/")[2]
    return step_id(re.sub(r"\$\{\{.*?\}\}", "", str(words)).lower(), ()) if words else f"step_{index + 1}"


def _as_texts(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else [str(member) for member in members(value)]
