"""Converts the jobs of a workflow of GitHub Actions to steps."""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from plan_adapter.importers.conversion import (
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
from plan_adapter.importers.github_expressions import parameter_text
from plan_adapter.importers.github_scope import ProducedStep, Scope, WorkflowContext, reason_to_leave_out
from plan_adapter.importers.github_scripts import (
    Shell,
    paste_constants,
    read_shell,
    refuse_code,
    replace_expressions,
    variables_for_later_steps,
)
from plan_adapter.model.readable import counted

MAX_EXPANDED = 512
"""The most steps that one job with a matrix becomes."""

MAX_COMBINATIONS = 256
"""The most combinations that GitHub itself accepts."""

_MOST_BEFORE_EXCLUSION = 10_000

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
_STATUS_FUNCTION = re.compile(r"\b(always|cancelled|failure|success)\s*\(", re.IGNORECASE)
"""Functions with which a condition of a job replaces "all jobs that it needs succeeded"."""


@dataclass(slots=True)
class Jobs:
    """Collects the steps of a workflow's jobs. Add each job after the jobs that it needs."""

    workflow: WorkflowContext
    defaults: Mapping[str, Any]
    is_only_job: bool
    needed: frozenset[str]
    steps: list[Document] = field(default_factory=list[Document])
    _last_steps: dict[str, list[str]] = field(default_factory=dict[str, list[str]])  # by job
    _left_out: set[str] = field(default_factory=set[str])  # the jobs that never run here
    _never_succeeds: set[str] = field(default_factory=set[str])  # these, and the jobs behind them in the chain of needs
    _success: dict[str, str] = field(default_factory=dict[str, str])  # by job: when it and every job before it in the chain succeeded
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
        inherits = _STATUS_FUNCTION.search(str(job.get("if"))) is None
        missing = [need for need in needs if need in self._never_succeeds]
        if inherits and missing:
            self._left_out.add(name)
            why = "which is left out" if missing[0] in self._left_out else "which needs a job that is left out"
            report.add("left out", f"the whole of it, because it needs `{missing[0]}`, {why}", name)
        waits_for = list(dict.fromkeys(last for need in needs for last in self._last_steps[need]))
        inherited = conjunction(*(self._success[need] for need in needs))
        own = outer.within(name, None)
        own.job, own.needs, own.declared_outputs = name, tuple(needs), mapping(job.get("outputs"))
        is_gated = not self._awaiting_approval.isdisjoint(needs)
        found = _Job(
            self, name, job, waits_for, inherited if inherits else "", own, success="false" if missing else inherited, is_gated=is_gated
        )
        self._last_steps[name], self.workflow.conditions[name], self._success[name] = waits_for, None, inherited
        if name in self._left_out or not found.may_run():
            self._left_out.add(name)
            self._never_succeeds.add(name)
            return
        if missing:
            self._never_succeeds.add(name)
        self.workflow.conditions[name] = found.condition
        self._success[name] = found.condition if inherits else conjunction(inherited, found.condition)
        self._last_steps[name] = found.convert() or waits_for
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
    outer: Scope  # of the job itself, without a matrix
    success: str  # the conditions of the jobs that it needs
    is_gated: bool  # the job waits for an approval
    is_gate_due: bool = False  # no step that always runs has requested it yet
    runner_os: str = "Linux"

    def convert(self) -> list[str]:
        """Append the steps, and return the last ones."""
        scope = self.outer
        self.is_gate_due = self.is_gated
        if "environment" in self.job:
            self.is_gated = self.is_gate_due = True
            named = mapping(self.job["environment"]).get("name", self.job["environment"])
            text = f"the environment `{prose(named)}` becomes an approval: the first step of the job waits at a gate"
            self.outer.workflow.report.add("changed", text, self.name)
        if "uses" in self.job:
            return self._replace_job(self._placeholder("uses", self.job, scope), scope)
        steps = [mapping(step) for step in members(self.job.get("steps"))]
        try:
            combinations = self._combinations()
        except NotConvertibleError as error:
            return self._refuse(error, scope)
        if combinations is None:
            self.runner_os = self._runner_os({}, scope)
            return self._append_steps(steps, scope, "")
        return self._expand_matrix(steps, combinations, scope)

    def _replace_job(self, fields: Document, scope: Scope) -> list[str]:
        """Append the one step that stands for the whole job, and return it."""
        added = self._append_step(fields, self.name, self.waits_for, scope)
        self.outer.workflow.produced[self.name, ""] = ProducedStep(self.jobs.steps[-1])
        return [added]

    def _refuse(self, error: NotConvertibleError, scope: Scope) -> list[str]:
        self.outer.workflow.report.add("left out", f"the whole of it: {error}; a placeholder step replaces it", self.name)
        return self._replace_job(placeholder_step(f"the job `{self.name}`: {error}", self.job), scope)

    def may_run(self) -> bool:
        """Return whether the job may run here, and add its own condition to those of the jobs that it needs."""
        if "if" not in self.job:
            return True
        condition = self._convert_condition(self.job["if"], self.outer, success=self.success)
        self.is_gated = self.is_gated or self.is_gate_due
        if condition is None:
            return False
        self.condition = conjunction(self.condition, condition)
        return True

    def _convert_condition(self, source: Any, scope: Scope, *, success: str = "") -> str | None:
        """Return a condition: "" if it is always true, None if it is never true here. The latter is reported."""
        report = self.outer.workflow.report
        shown = prose(source)
        try:
            found = scope.condition(source, success=success)
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
        known: Mapping[str, Any] = {} if scope.is_item or scope.combination is None else scope.combination
        where = f" with {', '.join(f'{key}: {prose(value)}' for key, value in known.items())}" if known else ""
        report.add("left out", f"the whole of it{where}, because `if: {shown}` is true only after a failure, or never here", scope.at)
        return None

    # The matrix.

    def _combinations(self) -> list[Document] | None:
        """Return the combinations of the matrix, or None if there are none, or if they are not known in advance.

        Raises NotConvertibleError if there are too many.
        """
        strategy = self.job.get("strategy")
        if strategy is None:
            return None
        report, matrix = self.outer.workflow.report, mapping(strategy).get("matrix")
        for key in mapping(strategy).keys() - {"matrix"}:
            report.add("left out", f"`strategy.{key}`", self.name)
        if matrix is None:
            return None
        if Scope.names_results(literal(matrix)):
            raise NotConvertibleError("a result of another job of this workflow makes its matrix; write a group with `for_each` over it")
        if not mapping(matrix) or not all(isinstance(values, list) for values in mapping(matrix).values()):
            report.add("changed", "the matrix is known only while a workflow runs; the job runs once, and its values are inputs", self.name)
            return None
        return combinations_of(mapping(matrix))

    def _expand_matrix(self, steps: list[Document], combinations: list[Document], scope: Scope) -> list[str]:
        report, before = self.outer.workflow.report, len(self.jobs.steps)
        real = [step for step in steps if "run" in step or reason_to_leave_out(str(step.get("uses", ""))) is None]
        if len(real) == 1 and not self._differs(real[0], combinations, scope):
            keys = sorted({key for combination in combinations for key in combination})
            items = [{key: combination.get(key, "") for key in keys} for combination in combinations]
            if not any("${{" in literal(item) for item in items):
                scope.combination, scope.is_item = (items[0] if items else {}), True
                self.runner_os = self._runner_os(combinations[0] if combinations else {}, scope)
                last, count = self._append_steps(steps, scope, ""), len(self.jobs.steps)
                for step in self.jobs.steps[before:]:
                    step |= {"for_each": as_expression(literal(items)), "label": _label(items)}
                if count > before:
                    report.add("kept", f"the matrix, as a `for_each` over {counted(len(items), 'combination')}", self.name)
                return last
        if len(combinations) * len(real) > MAX_EXPANDED:
            several = f"its matrix has {counted(len(combinations), 'combination')} of {counted(len(real), 'step')} each"
            return self._refuse(NotConvertibleError(f"{several}; write a group with `for_each`"), scope)
        report.add("changed", f"each of {counted(len(combinations), 'combination')} of the matrix has steps of its own", self.name)
        last = list[str]()
        for combination in combinations:
            own = scope.within(self.name, None)
            own.combination = combination
            self.runner_os = self._runner_os(combination, scope)
            last += self._append_steps(
                steps, own, "_".join(str(value) for value in combination.values() if not isinstance(value, dict | list))
            )
        return last

    def _differs(self, step: Document, combinations: list[Document], scope: Scope) -> bool:
        """Return whether the combinations differ in more than the values of one step, so that each needs steps of its own."""
        shell = step.get("shell") or self._run_default("shell")
        systems = {self._runner_os(combination, scope) for combination in combinations}
        text = f"{step} {self.job.get('env')}".lower()
        return (
            (len(systems) > 1 and ("runner.os" in text or "runner_os" in text))
            or bool(self.job.get("outputs"))
            or "matrix" in f"{step.get('if')} {self.job.get('if')} {shell}"
            or ("run" in step and not shell and "Windows" in systems and len(systems) > 1)
        )

    def _runner_os(self, combination: Document, scope: Scope) -> str:
        """Return the operating system that the labels of `runs-on` name."""
        own = scope.within(self.name, None)
        own.combination, own.is_item = combination or None, False
        labels = self.job.get("runs-on", "")
        labels = mapping(labels).get("labels", labels)
        names = [labels] if isinstance(labels, str) else members(labels)
        text = " ".join(own.value_of(name).text or "" for name in names).casefold()
        return "Windows" if "windows" in text else "macOS" if "macos" in text else "Linux"

    # The steps.

    def _append_steps(self, steps: Sequence[Document], scope: Scope, suffix: str) -> list[str]:
        """Append `steps`, each after the one before it, and return the last."""
        workflow = self.outer.workflow
        scope.runner_os = self.runner_os
        before, scope = self.waits_for, scope.within(self.name, self.job.get("env"))
        scope.writers = []
        has_changed_files = False
        workflow.outputs[self.name] = scope
        self.is_gate_due = self.is_gated
        for index, step in enumerate(steps):
            wanted = _step_name(step, index)
            at, key = f"{self.name}.{wanted}", (self.name, str(step.get("id", "")) or f"{index}.")
            workflow.produced.pop(key, None)
            for name in step.keys() - _STEP_FIELDS:
                workflow.report.add("left out", f"`{name}`, which steps do not have", at)
            own = scope.within(at, step.get("env"))
            action, settings = str(step.get("uses", "")), mapping(step.get("with"))
            try:
                reason = None if "run" in step else workflow.files.reason_to_keep(action, settings, own.text)
            except NotConvertibleError as error:
                reason = str(error)
            hint = None if "run" in step or reason else reason_to_leave_out(action)
            condition = self._convert_condition(step["if"], own) if "if" in step and not hint else ""
            if hint or condition is None:
                workflow.left_out[key] = action if hint else ""
                given = f" with {', '.join(settings)}" if settings else ""
                if hint:
                    workflow.report.add("left out", f"`{action}`{given}: {hint}", at)
                if hint and has_changed_files and action.casefold().startswith("actions/checkout"):
                    text = "a second checkout, which also removes what the steps before it made; write `git clean -ffdx` if it matters"
                    workflow.report.add("left out", text, at)
                continue
            fields = self._convert_script(step, own) if "run" in step else self._placeholder("uses", step, own, reason or "")
            own_id = "_".join(filter(None, ["" if self.jobs.is_only_job else self.name, wanted, suffix]))
            is_last = index == len(steps) - 1 and self.name not in self.jobs.needed
            added = self._append_step(self._add_limits(step, fields, own, is_last=is_last), own_id, before, own, condition)
            before, has_changed_files = [added], True
            script = _written(step)
            produced = workflow.produced[key] = ProducedStep(
                self.jobs.steps[-1],
                frozenset(name.lower() for name in re.findall(r"(\w+)<<", script)),
                sets_output="::set-output" in script,
                ignores_failure=step.get("continue-on-error") is True and not is_last and not is_placeholder(fields),
            )
            self._set_variables(step, produced, scope)
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

    def _placeholder(self, key: str, original: Mapping[str, Any], scope: Scope, reason: str = "") -> Document:
        what, named = f"write what `{original.get(key)}` does", _description(original, scope)
        because = f", because {reason}" if reason else ""
        self.outer.workflow.report.add("left out", f"`{original.get(key)}`: a placeholder step replaces it{because}", scope.at)
        return placeholder_step(
            f"{named}: {what}{because}" if named else f"{what}{because}",
            {**original, **({"matrix": scope.combination} if scope.combination else {})},
        )

    def _convert_script(self, step: Document, scope: Scope) -> Document:
        report, script = self.outer.workflow.report, _written(step)
        folder = step.get("working-directory") or self._run_default("working-directory")
        values = dict(scope.env)
        try:
            shell = self._shell(step, scope)
            text = (
                replace_expressions(script, scope.expression, values)
                if shell.expands_variables
                else paste_constants(script, scope.expression)
            )
            if text != script:
                report.add("changed", "values in the script are variables now, set in `env`", scope.at)
            scope.add_runner_variables(script, values)
            for value in values.values():
                parameter_text(value)
            directory = scope.text(folder) if folder else ""
            refuse_code(text if shell.expands_variables else "", values)
        except NotConvertibleError as error:
            report.add("left out", f"the script: {error}; a placeholder step replaces it", scope.at)
            return placeholder_step(f"{step.get('name') or 'script'}: {error}", step)
        text = shell.settings + shell.template.format(text) if shell.template != "{}" else shell.settings + text
        parameters: Document = {"argv": [*shell.argv, text]} if shell.argv else {"command": text}
        if folder:
            parameters["cwd"] = directory
        if values:
            parameters["env"] = {name: parameter_text(value) for name, value in values.items()}
        return {
            "tool_name": "run_command" if shell.argv else "bash",
            "description": _description(step, scope) or prose(script.strip().partition("\n")[0]),
            "parameters": parameters,
        }

    def _shell(self, step: Document, scope: Scope) -> Shell:
        """Return the shell of a script, and report what differs from the tool bash. Raises NotConvertibleError."""
        report = self.outer.workflow.report
        given = step.get("shell") or self._run_default("shell") or ("pwsh" if self.runner_os == "Windows" else "bash")
        text = scope.value_of(str(given)).text
        if not text or not text.strip():
            raise NotConvertibleError(f"its shell `{prose(given)}` is known only while a workflow runs")
        shell = read_shell(text.strip())
        if text == "sh":
            report.add("changed", "`shell: sh`: the script runs in bash", scope.at)
        if shell.argv:
            why = "" if given != "pwsh" or step.get("shell") else ", because its runner is Windows"
            report.add("changed", f"the script runs as `{' '.join(shell.argv)} …`{why}", scope.at)
        elif shell.settings:
            report.add("kept", f"`shell: {text}`, as `set` at the start of the script", scope.at)
        return shell

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

    def _set_variables(self, step: Document, produced: ProducedStep, scope: Scope) -> None:
        """Give later steps the variables that the script of `step` writes to $GITHUB_ENV."""
        report, script = self.outer.workflow.report, _written(step)
        if is_placeholder(produced.step) and "GITHUB_ENV" not in script:
            scope.writers.append(produced)
        if "GITHUB_ENV" not in script:
            return
        names, is_complete = variables_for_later_steps(script, is_shell=produced.step["tool_name"] == "bash" or "-c" in script)
        if not is_complete:
            report.add("left out", "some of what the script writes to `$GITHUB_ENV`: later steps do not see it", scope.at)
            scope.writers.append(produced)
        for name in names:
            scope.env[name] = produced.output(name, scope.env.get(name), file="env")
            report.add("changed", f"`{name}`, written to `$GITHUB_ENV`, is read from the output of the step", scope.at)


def combinations_of(matrix: Mapping[str, list[Any]]) -> list[Document]:
    """Return the combinations of a matrix, with its `include` and `exclude`.

    Raises NotConvertibleError if there are more than GitHub accepts, before they are built if there are very many.
    """
    axes = {str(key): values for key, values in matrix.items() if key not in ("include", "exclude")}
    count = math.prod(map(len, axes.values()))
    if count > _MOST_BEFORE_EXCLUSION:
        raise _too_many(count)
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
    if len(found) > MAX_COMBINATIONS:
        raise _too_many(len(found))
    return found


def _too_many(count: int) -> NotConvertibleError:
    return NotConvertibleError(f"its matrix has {count:,} combinations, and GitHub accepts {MAX_COMBINATIONS} at most")


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


def _written(step: Mapping[str, Any]) -> str:
    """Return the script of a step as it is written, which YAML may read as a number or a boolean, or ""."""
    script = step.get("run")
    return str(script).lower() if isinstance(script, bool) else "" if script is None else str(script)


def _as_texts(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else [str(member) for member in members(value)]
