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
    both,
    in_milliseconds,
    let_fail,
    literal,
    mapping,
    members,
    prose,
    step_id,
    step_to_do,
)
from plan_adapter.runbooks.github_actions import reason_to_leave_out
from plan_adapter.runbooks.github_expressions import written
from plan_adapter.runbooks.github_scope import Produced, Scope, World
from plan_adapter.runbooks.github_scripts import without_expressions

MOST_EXPANDED = 50
"""The most steps that one job with a matrix becomes."""

_MINUTE = 60_000
_NOT_NEEDED: Mapping[str, str] = {
    "runs-on": "steps run where the plan runs",
    "permissions": "steps have the permissions of the worker",
    "container": "run the worker in this image, or write `docker run` in the scripts",
    "services": "start these services before the run, or in a step",
    "concurrency": "runs do not exclude each other: start one at a time",
}
_STEP_FIELDS = frozenset(
    {"id", "name", "uses", "with", "run", "env", "if", "working-directory", "shell", "timeout-minutes", "continue-on-error"}
)
_JOB_FIELDS = frozenset(
    {
        "name",
        "needs",
        "if",
        "env",
        "steps",
        "strategy",
        "outputs",
        "environment",
        "defaults",
        "timeout-minutes",
        "continue-on-error",
        "uses",
    }
    | {"with", "secrets", *_NOT_NEEDED}
)
_PROGRAMS = {"python": ["python3", "-c"], "pwsh": ["pwsh", "-Command"], "powershell": ["pwsh", "-Command"], "node": ["node", "-e"]}
_ASSIGNED = re.compile(r"(\w+)=[^\n]*>>\s*[\"']?\$\{?GITHUB_ENV")


@dataclass(slots=True)
class Jobs:
    """Collects the steps of a workflow's jobs. Add the jobs in an order in which each comes after those that it needs."""

    world: World
    defaults: Mapping[str, Any]
    is_only_job: bool
    needed: frozenset[str]
    steps: list[Document] = field(default_factory=list[Document])
    _last: dict[str, list[str]] = field(default_factory=dict[str, list[str]])  # by job
    _conditions: dict[str, str] = field(default_factory=dict[str, str])  # by job
    _left_out: set[str] = field(default_factory=set[str])  # the jobs that never run here

    def add(self, name: str, job: Mapping[str, Any], outer: Scope) -> None:
        """Append the steps of a job."""
        report = self.world.report
        for key in job.keys() & _NOT_NEEDED.keys():
            report.add("left out", f"`{key}`: {_NOT_NEEDED[key]}", name)
        for key in job.keys() - _JOB_FIELDS:
            report.add("left out", f"`{key}`, which plans do not have", name)
        needs = [need for need in _texts(job.get("needs")) if need in self._last]
        if (missing := [need for need in needs if need in self._left_out]) and "always()" not in str(job.get("if")):
            self._left_out.add(name)
            report.add("left out", f"the whole of it, because it needs `{missing[0]}`, which is left out", name)
        waits_for = list(dict.fromkeys(last for need in needs for last in self._last[need]))
        inherited = both(*(self._conditions[need] for need in needs))
        found = _Job(self, name, job, waits_for, inherited, outer)
        self._last[name], self._conditions[name] = waits_for, found.condition
        if name in self._left_out:
            return
        if not found.may_run():
            self._left_out.add(name)
            return
        self._last[name], self._conditions[name] = found.convert() or waits_for, found.condition

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
    _is_gate_due: bool = False

    def convert(self) -> list[str]:
        """Append the steps, and return the last ones."""
        scope = self.outer.within(self.name, None)
        scope.job, scope.declared_outputs = self.name, mapping(self.job.get("outputs"))
        if "environment" in self.job:
            self._is_gate_due = True
            named = mapping(self.job["environment"]).get("name", self.job["environment"])
            text = f"the environment `{prose(named)}` becomes an approval: the first step of the job waits at a gate"
            self.outer.world.report.add("changed", text, self.name)
        if "uses" in self.job:
            return [self._append(self._to_do("uses", self.job, scope), self.name, self.waits_for, scope)]
        steps = [mapping(step) for step in members(self.job.get("steps"))]
        combinations = self._combinations()
        if combinations is None:
            return self._chain(steps, scope, "")
        return self._expand(steps, combinations, scope)

    def may_run(self) -> bool:
        """Return whether the job may run here, and add its own condition to those of the jobs that it needs."""
        if "if" not in self.job:
            return True
        scope = self.outer.within(self.name, None)
        condition = self._condition(self.job["if"], scope)
        if condition is None:
            return False
        self.condition = both(self.condition, condition)
        return True

    def _condition(self, source: Any, scope: Scope) -> str | None:
        """Return a condition, "" if it is always true, or None if it is never true here, which is reported."""
        report = self.outer.world.report
        shown = prose(source)
        try:
            found = scope.condition(source)
        except NotConvertibleError as error:
            self._is_gate_due = True
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
        report, matrix = self.outer.world.report, mapping(strategy).get("matrix")
        for key in mapping(strategy).keys() - {"matrix"}:
            report.add("left out", f"`strategy.{key}`", self.name)
        if not mapping(matrix) or not all(isinstance(values, list) for values in mapping(matrix).values()):
            report.add("changed", "the matrix is known only while a workflow runs; the job runs once, and its values are inputs", self.name)
            return None
        return combinations_of(mapping(matrix))

    def _expand(self, steps: list[Document], combinations: list[Document], scope: Scope) -> list[str]:
        report = self.outer.world.report
        real = [step for step in steps if "run" in step or reason_to_leave_out(str(step.get("uses", ""))) is None]
        if len(real) == 1 and not self.job.get("outputs") and "matrix." not in f"{real[0].get('if')} {self.job.get('if')}":
            keys = sorted({key for combination in combinations for key in combination})
            items = [{key: combination.get(key, "") for key in keys} for combination in combinations]
            if not any("${{" in literal(item) for item in items):
                scope.combination, scope.is_item = (items[0] if items else {}), True
                last = self._chain(steps, scope, "")
                self.jobs.steps[-1]["for_each"] = as_expression(literal(items))
                self.jobs.steps[-1]["label"] = _label(items)
                report.add("kept", f"the matrix, as a `for_each` over {counted(len(items), 'combination')}", self.name)
                return last
        fitting = max(1, MOST_EXPANDED // max(1, len(real)))
        if len(combinations) > fitting:
            report.add("left out", f"{len(combinations) - fitting} of {len(combinations)} combinations of the matrix", self.name)
        report.add(
            "changed", f"each of {counted(min(fitting, len(combinations)), 'combination')} of the matrix has steps of its own", self.name
        )
        last = list[str]()
        for combination in combinations[:fitting]:
            own = scope.within(self.name, None)
            own.combination = combination
            last += self._chain(steps, own, "_".join(str(value) for value in combination.values() if not isinstance(value, dict | list)))
        return last

    # The steps.

    def _chain(self, steps: Sequence[Document], scope: Scope, suffix: str) -> list[str]:
        """Append `steps`, each after the one before it, and return the last."""
        before, scope = self.waits_for, scope.within(self.name, self.job.get("env"))
        self.outer.world.outputs[self.name] = scope
        for index, step in enumerate(steps):
            wanted = _name_of(step, index)
            at = f"{self.name}.{wanted}"
            for key in step.keys() - _STEP_FIELDS:
                self.outer.world.report.add("left out", f"`{key}`, which steps do not have", at)
            own = scope.within(at, step.get("env"))
            if hint := None if "run" in step else reason_to_leave_out(str(step.get("uses", ""))):
                self.outer.world.report.add("left out", f"`{step['uses']}`: {hint}", at)
                continue
            condition = self._condition(step["if"], own) if "if" in step else ""
            if condition is None:
                continue
            fields = self._script(step, own) if "run" in step else self._to_do("uses", step, own)
            own_id = "_".join(filter(None, ["" if self.jobs.is_only_job else self.name, wanted, suffix]))
            is_last = index == len(steps) - 1 and self.name not in self.jobs.needed
            added = self._append(self._with_limits(step, fields, own, is_last=is_last), own_id, before, own, condition)
            before = [added]
            if step.get("id") and "run" in step:
                may_be_skipped = "when" in self.jobs.steps[-1]
                long = frozenset(re.findall(r"(\w+)<<", str(step.get("run", ""))))
                self.outer.world.produced[self.name, str(step["id"])] = Produced(added, may_be_skipped, long)
            self._set_variables(step, added, scope)
        return before

    def _append(self, fields: Document, wanted: str, waits_for: list[str], scope: Scope, condition: str = "") -> str:
        if when := both(self.condition, condition):
            fields["when"] = as_expression(when)
        if waits_for:
            fields["depends_on"] = waits_for
        if self._is_gate_due:
            fields["requires_approval"], self._is_gate_due = True, False
        if self.job.get("continue-on-error") is True:
            fields["on_error"] = "continue"
            text = "`continue-on-error` of the job: a failure skips the jobs that need it, and the others run"
            self.outer.world.report.add("changed", text, self.name)
        if self.job.get("timeout-minutes") is not None:
            hint = "set `timeout_ms` of the steps, or `options.total_timeout_ms`"
            self.outer.world.report.add(
                "left out", f"`timeout-minutes: {prose(self.job['timeout-minutes'])}` of the job; {hint}", self.name
            )
        return self.jobs.append(fields, wanted)

    def _to_do(self, key: str, original: Mapping[str, Any], scope: Scope) -> Document:
        what = f"write what `{original.get(key)}` does"
        self.outer.world.report.add("left out", f"`{original.get(key)}`: a step to do stands in its place", scope.at)
        kept = {name: original[name] for name in ("uses", "with", "run", "shell") if name in original}
        return step_to_do(f"{original['name']}: {what}" if original.get("name") else what, kept)

    def _script(self, step: Document, scope: Scope) -> Document:
        script = str(step["run"])
        shell = str(step.get("shell") or self._default("shell") or "bash").split()
        folder = step.get("working-directory") or self._default("working-directory")
        env = {name: written(value) for name, value in scope.env.items()}
        parameters: Document = {}
        try:
            if shell[0] in ("bash", "sh"):
                if shell[0] == "sh":
                    self.outer.world.report.add("changed", "`shell: sh`: the script runs in bash", scope.at)
                tool, parameters["command"] = "bash", without_expressions(script, scope.expression, env)
                if parameters["command"] != script:
                    self.outer.world.report.add("changed", "values in the script are variables now, set in `env`", scope.at)
            elif shell[0] in _PROGRAMS and "${{" not in script:
                tool, parameters["argv"] = "run_command", [*_PROGRAMS[shell[0]], script]
                self.outer.world.report.add("changed", f"the script runs as `{' '.join(_PROGRAMS[shell[0]])} …`", scope.at)
            else:
                raise _unknown(shell[0])
        except NotConvertibleError as error:
            self.outer.world.report.add("left out", f"the script: {error}; a step to do stands in its place", scope.at)
            return step_to_do(f"{step.get('name') or 'script'}: {error}", {key: step[key] for key in ("run", "shell") if key in step})
        scope.variables_of(script, env)
        if folder:
            parameters["cwd"] = scope.text(folder)
        if env:
            parameters["env"] = env
        return {"tool_name": tool, "description": prose(step.get("name") or script.strip().partition("\n")[0]), "parameters": parameters}

    def _default(self, key: str) -> Any:
        own = mapping(mapping(self.job.get("defaults")).get("run"))
        return own.get(key) or mapping(self.jobs.defaults.get("run")).get(key)

    def _with_limits(self, step: Document, fields: Document, scope: Scope, *, is_last: bool) -> Document:
        report = self.outer.world.report
        if (minutes := step.get("timeout-minutes")) is not None:
            if (timeout := in_milliseconds(minutes, _MINUTE)) is not None:
                fields["timeout_ms"] = timeout
            else:
                report.add("left out", f"`timeout-minutes: {prose(minutes)}`: write `timeout_ms`", scope.at)
        match step.get("continue-on-error"):
            case True if is_last:
                fields["on_error"] = "continue"
            case True:
                let_fail(fields)
                report.add("changed", "`continue-on-error`: the script itself ignores its failure, so that the next steps run", scope.at)
            case None | False:
                pass
            case other:
                report.add("left out", f"`continue-on-error: {prose(other)}`: a failure stops the run", scope.at)
        return fields

    def _set_variables(self, step: Document, added: str, scope: Scope) -> None:
        """Let the steps behind `step` have the variables that its script writes to $GITHUB_ENV."""
        for name in dict.fromkeys(_ASSIGNED.findall(str(step.get("run", "")))):
            scope.env[name] = Produced(added, "when" in self.jobs.steps[-1]).output(name)
            self.outer.world.report.add("changed", f"`{name}`, written to `$GITHUB_ENV`, is read from the output of the step", scope.at)


def _unknown(shell: str) -> NotConvertibleError:
    reason = "contains expressions" if shell in _PROGRAMS else "is not known here"
    return NotConvertibleError(f"a script for `shell: {shell}` {reason}")


def combinations_of(matrix: Mapping[str, list[Any]]) -> list[Document]:
    """Return the combinations of a matrix, with its `include` and `exclude`."""
    axes = {str(key): values for key, values in matrix.items() if key not in ("include", "exclude")}
    excluded = [mapping(entry) for entry in matrix.get("exclude", [])]
    found = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())] if axes else []
    found = [one for one in found if not any(all(one.get(key) == value for key, value in entry.items()) for entry in excluded)]
    originals = [dict(one) for one in found]
    for entry in [mapping(entry) for entry in matrix.get("include", [])]:
        fitting = [
            one
            for one, original in zip(found, originals, strict=False)
            if all(original[key] == value for key, value in entry.items() if key in original)
        ]
        if fitting and axes:
            for one in fitting:
                one.update(entry)
        else:
            found.append(dict(entry))
    return found


def _label(items: list[Document]) -> str:
    keys = [key for key in (items[0] if items else {}) if not isinstance(items[0][key], dict | list)]
    return "-".join(as_expression(f"item[{literal(key)}]") for key in keys) or "combination"


def _name_of(step: Document, index: int) -> str:
    if step.get("id"):
        return str(step["id"])
    words = step.get("name") or str(step.get("uses") or "").partition("@")[0].rpartition("/")[2]
    return step_id(re.sub(r"\$\{\{.*?\}\}", "", str(words)).lower(), ()) if words else f"step_{index + 1}"


def _texts(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else [str(one) for one in members(value)]
