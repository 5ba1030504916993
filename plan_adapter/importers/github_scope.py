"""What the expressions of a workflow refer to, as values of a plan."""

import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from plan_adapter.importers.conversion import (
    Document,
    NotConvertibleError,
    Report,
    StandIns,
    is_placeholder,
    literal,
    mapping,
    members,
    prose,
)
from plan_adapter.importers.github_expressions import (
    Condition,
    Kind,
    Path,
    Value,
    as_text,
    concatenate,
    list_of,
    parameter_text,
    pieces,
    translate,
    translate_condition,
)

_FILES = "files stay where the steps run, so nothing has to be carried from job to job"

_LEFT_OUT: tuple[tuple[str, str], ...] = (
    (r"actions/checkout", "run the plan in a checkout, or write a step with `git clone`"),
    (r"actions/cache(/\w+)?|swatinem/rust-cache", "what was downloaded stays on the machine where the steps run"),
    (r"actions/(upload|download)-artifact(/\w+)?|actions/upload-pages-artifact", _FILES),
    (r"docker/login-action", "log in with `docker login` where the plan runs, or write a step with the password from `secrets` in `env`"),
    (r"aws-actions/configure-aws-credentials", "AWS_* variables of the worker reach the steps, or pass them through `env`"),
    (r"aws-actions/amazon-ecr-login", "log in with `aws ecr get-login-password | docker login …` where the plan runs"),
    (r"azure/(login|docker-login|aks-set-context|k8s-set-context)", "log in with `az login` where the plan runs"),
    (r"google-github-actions/(auth|get-gke-credentials)", "log in with `gcloud auth` where the plan runs"),
    (r"github/codeql-action/[\w-]+|step-security/harden-runner|actions/configure-pages", "it serves GitHub itself"),
    (r"[\w.-]+/([\w.-]*setup[\w.-]*)(/[\w./-]+)?|[\w.-]+/[\w.-]*(toolchain|installer|install-action)", "install it where the plan runs"),
)


def reason_to_leave_out(action: str) -> str | None:
    """Return a hint in place of an action that only prepares a runner, or None for one that does real work."""
    name = action.partition("@")[0].casefold()
    return next((hint for pattern, hint in _LEFT_OUT if re.fullmatch(pattern, name)), None)


@dataclass(slots=True)
class Files:
    """Which revision the steps of a plan work on, and where they find the artifacts of earlier jobs. All of them share one folder."""

    checkout: tuple[str, ...] | None = None
    uploads: dict[str, set[str]] = field(default_factory=dict[str, set[str]])  # by artifact: the folders that its files come from

    def reason_to_keep(self, action: str, settings: Mapping[str, Any], text: Callable[[Any], str]) -> str | None:
        """Return why a `checkout` or `download-artifact` cannot be left out, or None. `text` returns a setting as a text."""
        name = action.partition("@")[0].casefold()
        given = {key: text(value).strip() for key, value in settings.items() if value is not None}
        if name == "actions/checkout":
            return self._check_checkout(given)
        if name == "actions/upload-artifact":
            self.uploads.setdefault(given.get("name", "artifact"), set()).add(_root(given.get("path", "")))
        if name == "actions/download-artifact":
            return self._check_download(given)
        return None

    def _check_checkout(self, given: Mapping[str, str]) -> str | None:
        path = posixpath.normpath(given.get("path") or ".")
        repository = given.get("repository", "")
        if "github_repository" in repository:
            repository = ""
        wanted = (repository, given.get("ref", ""), path)
        if repository or path != ".":
            return "it puts other files where the next steps work"
        if self.checkout is None:
            self.checkout = wanted
        return None if wanted == self.checkout else "it changes the revision that the next steps work on"

    def _check_download(self, given: Mapping[str, str]) -> str | None:
        target = posixpath.normpath(given.get("path") or ".")
        if {"run-id", "repository", "artifact-ids", "pattern"} & given.keys():
            return "it does not download an artifact of this workflow by its name"
        is_merged = "name" in given or given.get("merge-multiple", "").lower() == "true"
        names = [given["name"]] if "name" in given else [*self.uploads]
        roots = {root for name in names for root in self.uploads.get(name, {"<unknown>"})}
        return (
            None
            if is_merged and roots == {target}
            else f"it puts the files of an artifact into `{target}`, and here they stay where they were made"
        )


def _root(path: str) -> str:
    """Return the folder whose content becomes the content of the artifact, or the text if there are several."""
    lines = [line.strip() for line in path.splitlines() if line.strip() and not line.strip().startswith("!")]
    if len(lines) != 1:
        return path
    parts = posixpath.normpath(lines[0]).split("/")
    fixed = next((index for index, part in enumerate(parts) if "*" in part or "?" in part), len(parts))
    if fixed == len(parts) and "." in parts[-1].strip("."):
        fixed -= 1  # a file
    return "/".join(parts[:fixed]) or "."


KINDS: Mapping[str, Kind] = {"string": "string", "boolean": "bool", "number": "number"}

OUTPUTS = {
    "GITHUB_OUTPUT": "/dev/stdout",
    "GITHUB_ENV": "/dev/stdout",
    "GITHUB_STEP_SUMMARY": "/dev/stdout",
    "GITHUB_PATH": "/dev/null",
    "GITHUB_STATE": "/dev/null",
}
"""The files of a runner that scripts write to, and what they are here unless a later step reads them (`_RECORDED`)."""

_WRITTEN = "::what the step wrote::"
_MOST_WRITTEN = 7_000  # characters, which the end of a step's output keeps
_RECORDED = (
    """\
export GITHUB_OUTPUT="$(mktemp)" GITHUB_ENV="$(mktemp)"
set +e
(
set -e -o pipefail
""",
    f"""
)
code=$?
written="$(for file in OUTPUT ENV; do
  name="GITHUB_$file"
  {{ cat "${{!name}}"; echo; }} | sed "s/^/::$file::/"
done)"
rm -f "$GITHUB_OUTPUT" "$GITHUB_ENV"
if [ "${{#written}}" -gt {_MOST_WRITTEN} ]; then
  echo "GITHUB_OUTPUT and GITHUB_ENV are longer than the {_MOST_WRITTEN} characters that are kept" >&2
  exit 1
fi
printf '\\n%s\\n%s\\n' '{_WRITTEN}' "$written"
exit "$code"
""",
)
"""What surrounds a script so that its output ends with what it wrote to the files of a runner, each line marked."""

_SET_OUTPUT = (
    'printed="$(mktemp)"\n(\n',
    """
) | tee "$printed"
sed -n 's/^::set-output name=\\([^:]*\\)::/\\1=/p' "$printed" >> "$GITHUB_OUTPUT"
rm -f "$printed"
""",
)
"""What surrounds a script that prints its outputs, as `::set-output name=x::1`."""

_RUNNER = {"arch": "X64", "temp": "/tmp", "debug": ""}  # noqa: S108  # the folder that scripts expect
_RUNNER_VARIABLE = re.compile(r"(?:\$\{?|environ\W+|getenv\W+|env[.:]|\b(?=GITHUB_RUN_))((?:GITHUB|RUNNER)_[A-Z_]+)\b")
_SECRET = re.compile(r"\bsecrets\.([A-Za-z_]\w*)")
_UNKNOWN = frozenset({"github", "vars", "runner", "matrix", "strategy"})


_NUMBERS = frozenset({"github.run_number", "github.run_id", "github.run_attempt"})
"""What GitHub counts, so that it is safe in arithmetic."""


@dataclass(frozen=True, slots=True)
class ProducedStep:
    """The plan step that a workflow's step became, as a document, and what expressions about it need."""

    step: Document
    long_outputs: frozenset[str] = frozenset()  # written over several lines: `name<<END`
    sets_output: bool = False  # with `::set-output`
    ignores_failure: bool = False

    @property
    def may_be_skipped(self) -> bool:
        """Whether the step has a condition."""
        return "when" in self.step

    def record_writes(self) -> None:
        """Let the step print what it writes to the files of a runner at its end."""
        parameters = self.step["parameters"]
        if any(str(text).endswith(_RECORDED[1]) for text in (parameters.get("command"), *parameters.get("argv", ()))):
            return
        given = str(parameters.get("command") or '"$@"').rstrip("\n")
        if self.sets_output:
            given = _SET_OUTPUT[0] + given + _SET_OUTPUT[1].rstrip("\n")
        given = _RECORDED[0] + given + _RECORDED[1]
        if "command" in parameters:
            parameters["command"] = given
        else:
            parameters["argv"] = ["bash", "-c", given, "bash", *parameters["argv"]]
        env = {name: value for name, value in parameters.pop("env", {}).items() if name not in ("GITHUB_OUTPUT", "GITHUB_ENV")}
        if env:
            parameters["env"] = env

    def output(self, name: str, fallback: Value | None = None, *, file: str = "output") -> Value:
        """Return the last value of `name` that the step wrote to a file of the runner, or `fallback` if it wrote none.

        A placeholder step prints it as `name=value`. The name of an output may be in any case. The expression fails if the step's output
        was cut.
        """
        found, result, mark = f"steps.{self.step['id']}", f"steps.{self.step['id']}.result.stdout", ""
        if not is_placeholder(self.step):
            self.record_writes()
            result, mark = f"{result}.substring({result}.lastIndexOf({literal(chr(10) + _WRITTEN + chr(10))}))", f"::{file.upper()}::"
        other = literal("") if fallback is None else literal(fallback.text) if fallback.text is not None else fallback.code
        start, is_long = f"\n{mark}{name}=", name.lower() in self.long_outputs
        is_embedded = not is_long and (fallback is None or (fallback.text is not None and "\n" not in fallback.text))
        before = f"{start}{fallback.text if fallback else ''}\n" if is_embedded else "\n"
        printed = f"({literal(before)} + {result})"
        in_any_case = printed if file == "env" else f"{printed}.lowerAscii()"
        if is_long:
            start = f"\n{mark}{name}<<"
        wanted = literal(start if file == "env" else start.lower())
        if is_long:
            rest = f"{printed}.substring({in_any_case}.lastIndexOf({wanted}) + {len(start)})"
            rest += f".replace({literal(chr(10) + mark)}, '\\n')" if mark else ""
            whole = "('\\n' + text.substring(text.indexOf('\\n') + 1)).split('\\n' + text.split('\\n')[0])[0].replace('\\n', '', 1)"
            value = f"[{rest}].map(text, {whole})[0]"
        else:
            value = f"{printed}.substring({in_any_case}.lastIndexOf({wanted}) + {len(start)}).split('\\n')[0]"
        is_there = [] if is_embedded else [f"{in_any_case}.contains({wanted})"]
        if self.may_be_skipped:
            is_there.insert(0, f"{found}.status == 'completed'")
        return Value(f"({' && '.join(is_there)} ? {value} : {other})" if is_there else value, "string")

    def outcome(self, *, is_conclusion: bool) -> Value:
        """Return `success`, `skipped` or `failure`. The conclusion does not count a failure that is ignored."""
        found = f"steps.{self.step['id']}"
        if self.ignores_failure and not is_conclusion:
            ended = f"{found}.result.stderr.trim().endsWith(' is ignored') ? 'failure' : 'success'"
            code = f"({found}.status != 'completed' ? 'skipped' : {ended})" if self.may_be_skipped else f"({ended})"
            return Value(code, "string", options=("success", "failure", "skipped"))
        return Value.of("success") if not self.may_be_skipped else success_if(f"{found}.status == 'completed'")


def success_if(condition: str) -> Value:
    """Return the result of a step or job that is skipped unless `condition` is true."""
    return Value(f"(({condition}) ? 'success' : 'skipped')", "string", options=("success", "skipped"), condition=condition)


@dataclass(slots=True)
class WorkflowContext:
    """What all jobs of a workflow share: inputs, events, the report, and the steps so far by job and id."""

    report: Report
    events: tuple[str, ...]  # what starts the workflow; by hand first
    inputs: dict[str, Document] = field(default_factory=dict[str, Document])
    names: dict[str, str] = field(default_factory=dict[str, str])  # the workflow's names of inputs, and the plan's
    produced: dict[tuple[str, str], ProducedStep] = field(default_factory=dict[tuple[str, str], ProducedStep])  # by job and id, or ""
    left_out: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])  # the action, or "" if it never runs here
    conditions: dict[str, str | None] = field(default_factory=dict[str, str | None])  # by job; None if it never runs here
    outputs: dict[str, "Scope"] = field(default_factory=dict[str, "Scope"])  # by job: where its outputs are evaluated
    files: Files = field(default_factory=Files)
    resolving: set[tuple[str, Path]] = field(default_factory=set[tuple[str, Path]])  # by job: the contexts whose values are being found
    stand_ins: StandIns = field(init=False)

    def __post_init__(self) -> None:
        """Share the plan's inputs with the stand-ins."""
        self.stand_ins = StandIns(self.inputs)

    def as_input(self, source: str, at: str) -> Value:
        """Return an input for a value that only GitHub knows."""
        name = self.stand_ins.name_of(source, re.sub("^vars[.]", "", source), at)
        if source not in _NUMBERS:
            return Value(f"inputs.{name}", "string")
        self.inputs[name]["pattern"] = "[0-9]+"
        return Value(f"inputs.{name}", "string", is_written=True)


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
    runner_os: str = "Linux"
    needs: tuple[str, ...] = ()
    writers: list[ProducedStep] = field(default_factory=list[ProducedStep])  # may have set variables whose names are not known

    def within(self, at: str, env: Any) -> "Scope":
        """Return the scope of a place inside this one, with its own variables."""
        own = replace(self, at=at, env=dict(self.env))
        if env is not None and not isinstance(env, dict):
            self.workflow.report.add("left out", f"`env: {prose(env)}`: write the variables", at)
        for name, value in mapping(env).items():
            if "${{" in name:
                self.workflow.report.add("left out", f"the variable `{prose(name)}`, because a value makes its name", at)
            else:
                own.env[name] = self.value_of(value)
        return own

    def value_of(self, value: Any) -> Value:
        """Return the value of a scalar that may contain expressions."""
        if not isinstance(value, str):
            return Value.of(value if isinstance(value, bool | int | float) else "")
        parts = [self.expression(part) if is_code else Value.of(self._closed(part)) for part, is_code in pieces(value)]
        return concatenate(parts) if parts else Value.of("")

    def text(self, value: Any) -> str:
        """Return a scalar as the text of a parameter."""
        if not isinstance(value, str):
            return parameter_text(self.value_of(value))
        return "".join(parameter_text(self.expression(part)) if is_code else self._closed(part) for part, is_code in pieces(value))

    def _closed(self, text: str) -> str:
        if "${{" in text:
            raise NotConvertibleError(f"{self.at}: an expression in `{prose(text)}` is not closed")
        return text

    def expression(self, source: str) -> Value:
        """Return the value of an expression. What cannot be translated becomes an input, or a secret if it is made of secrets."""
        secret = _SECRET.search(source)
        try:
            # CEL would need every secret of an `a || b`.
            found = None if secret is not None and "||" in source else translate(source, self.resolve)
        except NotConvertibleError as error:
            found = None
            if self._names_the_plan(source):
                return Value("", "string", missing=f"`{source}` is a result of this workflow, and has no equivalent ({error})")
        if found is not None:
            return Value.of("Array") if found.kind == "list" else found
        if secret is None:
            return self.workflow.as_input(source, self.at)
        self.workflow.report.add("changed", f"`{source}` is the secret `{secret[1]}` here", self.at)
        return Value(f"secrets.{secret[1]}", "string")

    @staticmethod
    def names_results(text: str) -> bool:
        """Return whether the expressions of a text are about steps or jobs of the workflow."""
        return any(is_code and re.search(r"\b(steps|needs|jobs)\s*[.\[]", part) for part, is_code in pieces(text))

    def _names_the_plan(self, source: str) -> bool:
        """Return whether an expression is about the steps or jobs of this workflow, so that no input can stand for it."""
        if any(value.missing and re.search(rf"\benv\.{name}\b", source) for name, value in self.env.items()):
            return True
        found = re.findall(r"\b(steps|needs|jobs)\b(?:\s*\.\s*([\w-]+)|\s*[\[),.]|$)", source)
        return any(root != "steps" or not self.workflow.left_out.get((self.job, name)) for root, name in found)

    def condition(self, source: Any, *, success: str = "") -> Condition:
        """Return the condition of an `if`. `success` is the condition of the jobs that it needs. Raises NotConvertibleError."""
        if isinstance(source, bool):
            return Condition(Value.of(source), frozenset())
        found = translate_condition(str(source), self.resolve, success=success)
        if _SECRET.search(found.value.code):
            raise NotConvertibleError("a condition cannot use a secret")
        return found

    def resolve(self, path: Path) -> Value:
        """Return the value of a context. Raises NotConvertibleError."""
        place = (self.job, path)
        if place in self.workflow.resolving:
            raise NotConvertibleError(f"`{'.'.join(path)}` refers to itself")
        self.workflow.resolving.add(place)
        try:
            found = self._resolve(path)
            if found.missing:
                raise NotConvertibleError(found.missing)
            return found
        finally:
            self.workflow.resolving.remove(place)

    def _resolve(self, path: Path) -> Value:
        match path:
            case ("github", "event", "inputs", name) if name in self.workflow.names:
                return as_text(self._resolve(("inputs", name)))
            case ("inputs", name) if name in self.workflow.names:
                known = self.workflow.names[name]
                definition = self.workflow.inputs[known]
                options = tuple(map(str, members(definition.get("enum"))))
                return Value(f"inputs.{known}", KINDS.get(str(definition.get("type")), "string"), options=options)
            case ("env", name):
                return as_text(self.env[name]) if name in self.env else self._unset(name)
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
            case ("runner", "os"):
                self.workflow.report.add("changed", f"`runner.os` is `{self.runner_os}`, by `runs-on`", self.at)
                return Value.of(self.runner_os)
            case ("runner", name) if name in _RUNNER:
                self.workflow.report.add("changed", f"`runner.{name}` is always `{_RUNNER[name]}`", self.at)
                return Value.of(_RUNNER[name])
            case ("steps", step, "outputs", name):
                return self._output(step, name)
            case ("steps", step, "outcome" | "conclusion" as key):
                return self._outcome(step, is_conclusion=key == "conclusion")
            case ("needs" | "jobs", job, "outputs", name):
                return self._job_output(job, name)
            case ("needs", "*", "result"):
                return list_of([self._result(job) for job in self.needs])
            case ("needs" | "jobs", job, "result"):
                return self._result(job)
            case ("job", "status"):
                return Value.of("success")  # a step runs only if everything that it waits for was successful
            case _ if path[0] in _UNKNOWN and "*" not in path:
                return self.workflow.as_input(".".join(path), self.at)
            case _:
                raise NotConvertibleError(f"`{'.'.join(path)}` has no equivalent")

    def _event_name(self) -> Value:
        """Return the event, which is the caller's in a workflow that another one calls."""
        events = [event for event in self.workflow.events if event != "workflow_call"]
        is_called = len(events) < len(self.workflow.events)
        if len(events) == 1 and not is_called:
            self.workflow.report.add("changed", f"`github.event_name` is always `{events[0]}`", self.at)
            return Value.of(events[0])
        value = self.workflow.as_input("github.event_name", self.at)
        definition = self.workflow.inputs[value.code.removeprefix("inputs.")]
        definition |= {"default": events[0]} if events else {}
        if is_called:
            return value
        definition |= {"enum": events}
        return replace(value, options=tuple(events))

    def _matrix_value(self, name: str, value: Any) -> Value:
        if self.is_item:
            code = f"item.{name}" if re.fullmatch(r"[A-Za-z_][\w.]*", name) else f"item[{literal(name)}]"
            return Value(code, "dyn", is_written=True)
        return self.value_of(value)

    def _secret(self, name: str) -> Value:
        self.workflow.report.add("changed", f"the secret `{name}` is read from your own secrets: `plan guide secrets`", self.at)
        return Value(f"secrets.{name}", "string")

    def _unset(self, name: str) -> Value:
        """Return a variable that the workflow sets nowhere before, except perhaps in a script or action whose variables are not known."""
        value = Value.of("")
        for produced in self.writers:
            value = produced.output(name, value, file="env")
        if value.constant is not None:
            self.workflow.report.add("changed", f"`env.{name}` is empty: nothing before it sets it", self.at)
        return value

    def _output(self, step: str, name: str) -> Value:
        action = self.workflow.left_out.get((self.job, step))
        if action and not action.casefold().startswith("actions/cache"):
            return self.workflow.as_input(f"steps.{step}.outputs.{name}", self.at)
        produced = self.workflow.produced.get((self.job, step))
        return Value.of("") if produced is None else self._produced_output(produced, f"steps.{step}", name)

    def _produced_output(self, produced: ProducedStep, source: str, name: str) -> Value:
        if is_placeholder(produced.step):
            text = f"`{source}.outputs.{name}` is read from what the placeholder step prints: a line `{name}=…`"
            self.workflow.report.add("changed", text, self.at)
        return produced.output(name)

    def _outcome(self, step: str, *, is_conclusion: bool) -> Value:
        if (produced := self.workflow.produced.get((self.job, step))) is not None:
            return produced.outcome(is_conclusion=is_conclusion)
        action = self.workflow.left_out.get((self.job, step))
        return Value.of("" if action is None else "success" if action else "skipped")

    def _job_output(self, job: str, name: str) -> Value:
        if (produced := self.workflow.produced.get((job, ""))) is not None:
            return self._produced_output(produced, f"needs.{job}", name)
        other = self.workflow.outputs.get(job)
        declared = {} if other is None else {key.lower(): value for key, value in other.declared_outputs.items()}
        return Value.of("") if other is None else as_text(other.value_of(declared.get(name.lower(), "")))

    def _result(self, job: str) -> Value:
        if job not in self.workflow.conditions:
            return Value.of("")
        condition = self.workflow.conditions[job]
        return Value.of("skipped") if condition is None else success_if(condition) if condition else Value.of("success")

    def add_runner_variables(self, script: str, values: dict[str, Value]) -> None:
        """Add to `values` the variables that a runner sets and `script` uses."""
        for name in sorted(set(_RUNNER_VARIABLE.findall(script)) - {"GITHUB_TOKEN"} - values.keys()):
            if name in OUTPUTS:
                values[name] = Value.of(OUTPUTS[name])
                if name == "GITHUB_PATH":
                    self.workflow.report.add(
                        "left out", "what is added to `$GITHUB_PATH`, because each step has its own environment", self.at
                    )
            else:
                root, _, rest = name.lower().partition("_")
                values[name] = self.resolve((root, rest))
