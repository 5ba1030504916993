"""Decides which runs a standing approval covers, and finds mistakes in one."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from pydantic import JsonValue

from plan_adapter.expressions import matches
from plan_adapter.model.approvals import GatePolicy, StandingApproval
from plan_adapter.model.canonical import canonical_json, runbook_digest
from plan_adapter.model.errors import ExpressionError, InvalidPlanError
from plan_adapter.model.options import Input, KnownBy
from plan_adapter.model.plan import new_id
from plan_adapter.model.problems import Problem, did_you_mean
from plan_adapter.model.readable import counted, one_line, visible
from plan_adapter.model.values import find_bad_values, join
from plan_adapter.validation import BoundPlan, ValidatedPlan
from plan_adapter.validation.inputs import read_values

MAX_PATTERN_CHARACTERS = 1000

NO_LIMIT = Problem(
    "missing-field", at="until", message="the approval has no limit", hint="add `until` (a time), `max_runs` (a number) or both"
)
NO_SCHEDULE = Problem(
    "missing-field", at="schedules", message="the approval names no schedule", hint="list the deployments whose scheduled runs it covers"
)


_PROOFS = frozenset[KnownBy](("os_user", "ssh_signature"))
"""How `plan standing add` knows who approves."""


def standing_digest(validated: ValidatedPlan) -> str:
    """Return the digest that a standing approval of `validated` binds to."""
    return runbook_digest(validated.digest, validated.definitions)


def takes_standing_approvals(gate_policy: GatePolicy) -> bool:
    """Return whether anyone can approve in advance under this gate policy: one person, by their account or their signature."""
    is_provable = gate_policy.known_by is None or not _PROOFS.isdisjoint(gate_policy.known_by)
    people, excluded = gate_policy.approvers, gate_policy.may_not_approve
    return gate_policy.quorum == 1 and is_provable and (people is None or any(name not in excluded for name in people))


def why_not_covered(standing: StandingApproval, bound: BoundPlan, *, schedule: str | None, now: datetime) -> str | None:
    """Return every reason why `standing` does not cover this run, in one line, or None if it does.

    `schedule` is the `flow/deployment` whose schedule started the run, or None if a person started it. `now` is the store's time. Values of
    inputs are not shown, because they may be secret.
    """
    reasons: list[str] = []
    if standing.runbook_digest != standing_digest(bound.validated):
        reasons.append(f"it covers other content: the plan or a tool's definition is not what {one_line(standing.by)} approved")
    if standing.revoked_at is not None:
        reasons.append(f"{one_line(standing.revoked_by or 'somebody')} revoked it at {_format_time(standing.revoked_at)}")
    if standing.until is not None and now >= standing.until:
        reasons.append(f"it expired at {_format_time(standing.until)}")
    if standing.max_runs is not None and standing.runs >= standing.max_runs:
        reasons.append(f"it is used up: {counted(standing.runs, 'run')} of {standing.max_runs}")
    if standing.until is None and standing.max_runs is None:
        reasons.append("it has no limit: neither a time nor a number of runs")
    if schedule is None:
        reasons.append("no schedule started this run")
    elif schedule not in standing.schedules:
        reasons.append(f"it is not for the schedule of {one_line(schedule)}")
    reasons += _input_reasons(standing.inputs, bound)
    return "; ".join(reasons) or None


def _input_reasons(patterns: Mapping[str, JsonValue], bound: BoundPlan) -> Iterable[str]:
    definitions = bound.validated.plan.inputs
    for name, value in bound.inputs.items():
        if name in patterns:
            if not pattern_allows(patterns[name], value):
                yield f"it does not allow this value of the input `{name}`"
        elif name not in definitions or not _is_default(value, definitions[name]):
            yield f"it does not name the input `{name}`, which differs from its default"
    for name in patterns:
        if name not in bound.inputs:
            yield f"it names the input `{one_line(name)}`, which the plan does not have"


def pattern_allows(pattern: JsonValue, value: JsonValue) -> bool:
    """Return whether `pattern` allows `value`.

    A text is a regular expression that must match the whole value; numbers and booleans are matched in their JSON form. It is an RE2
    expression, which takes linear time. An invalid expression, or one longer than 1,000 characters, matches nothing. Any other pattern is
    the value itself.
    """
    if not isinstance(pattern, str):
        return _is_same_json(pattern, value)
    if isinstance(value, list | dict) or value is None or pattern_fault(pattern) is not None:
        return False
    text = value if isinstance(value, str) else canonical_json(value).decode()
    try:
        return matches(rf"\A(?:{pattern})\z", text)
    except ExpressionError:
        return False


def pattern_fault(pattern: str) -> str | None:
    r"""Return why `pattern` is not a usable regular expression, or None if it is one.

    It must be valid by itself. In a group, `a)|(?:b` would become two alternatives, neither anchored at both ends, and `\Qa` would swallow
    what follows it.
    """
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        return f"the regular expression is longer than {MAX_PATTERN_CHARACTERS} characters"
    try:
        matches(pattern, "")
        matches(rf"\A(?:{pattern})\z", "")
    except ExpressionError as error:
        return str(error)
    return None


def _is_default(value: JsonValue, definition: Input) -> bool:
    return definition.default is not None and _is_same_json(definition.default, value)


def _is_same_json(one: JsonValue, other: JsonValue) -> bool:
    """Return whether two values are the same JSON: 1 equals 1.0, but not true."""
    return canonical_json(one) == canonical_json(other)


def _format_time(at: datetime) -> str:
    return at.isoformat(timespec="seconds")


def new_standing_approval(
    validated: ValidatedPlan,
    *,
    by: str,
    known_by: str,
    at: datetime,
    schedules: Sequence[str],
    inputs: Mapping[str, JsonValue] | None = None,
    steps: Sequence[str] = (),
    until: datetime | None = None,
    max_runs: int | None = None,
    note: str = "",
) -> StandingApproval:
    """Return a standing approval of `validated` by `by`. Raise InvalidPlanError, which lists every mistake."""
    standing = StandingApproval(
        id=new_id(),
        runbook_digest=standing_digest(validated),
        name=validated.plan.name,
        by=by,
        known_by=known_by,
        at=at,
        inputs=dict(inputs or {}),
        schedules=tuple(dict.fromkeys(schedules)),
        steps=tuple(dict.fromkeys(steps)),
        until=until,
        max_runs=max_runs,
        note=note,
    )
    if problems := [*find_standing_problems(standing), *find_plan_mismatches(standing, validated)]:
        raise InvalidPlanError(problems)
    return standing


def find_standing_problems(standing: StandingApproval) -> list[Problem]:
    """Return the mistakes in `standing` that do not depend on its plan."""
    problems: list[Problem] = []
    if not standing.by.strip() or visible(standing.by) != standing.by:
        problems.append(Problem("bad-value", at="by", message="this cannot be a person's name", hint="write who approves"))
    if standing.until is None and standing.max_runs is None:
        problems.append(NO_LIMIT)
    if not standing.schedules:
        problems.append(NO_SCHEDULE)
    for index, schedule in enumerate(standing.schedules):
        if len([part for part in schedule.split("/") if part.strip()]) != 2 or schedule.count("/") != 1:
            message = f"`{one_line(schedule)[:60]}` is not the name of a deployment"
            problems.append(Problem("bad-value", at=join("schedules", index), message=message, hint="write it as `flow/deployment`"))
    if standing.until is not None and standing.until <= standing.at:
        message = f"it would already have expired when it was given, at {_format_time(standing.at)}"
        problems.append(Problem("bad-value", at="until", message=message, hint="write a later time"))
    if standing.max_runs is not None and standing.max_runs < 1:
        problems.append(Problem("bad-value", at="max_runs", message="it would cover no run", hint="write 1 or more"))
    for name, pattern in standing.inputs.items():
        at = join("inputs", name)
        problems += find_bad_values(pattern, at)
        if isinstance(pattern, str) and (fault := pattern_fault(pattern)) is not None:
            problems.append(Problem("bad-value", at=at, message=fault, hint="patterns are those of RE2, without look-around"))
    return problems


def find_plan_mismatches(standing: StandingApproval, validated: ValidatedPlan) -> list[Problem]:
    """Return where `standing` does not match the plan: unknown inputs and steps, and inputs that no run could satisfy."""
    problems: list[Problem] = []
    definitions = validated.plan.inputs
    for name, pattern in standing.inputs.items():
        at = join("inputs", name)
        if name not in definitions:
            hint = did_you_mean(name, frozenset(definitions)) or "the plan declares no inputs"
            problems.append(Problem("unknown-input", at=at, message=f"the plan has no input `{one_line(name)[:60]}`", hint=hint))
        elif not isinstance(pattern, str) and not find_bad_values(pattern):
            problems += read_values({name: definitions[name]}, {name: pattern}, from_text=False)[1]
    for name, definition in definitions.items():
        if definition.default is None and name not in standing.inputs:
            message = f"`{name}` has no default and no pattern, so the approval would cover no run"
            problems.append(Problem("missing-input", at=join("inputs", name), message=message, hint="add a pattern or a value for it"))
    known = [step.id for step in validated.plan.all_steps]
    for index, step_id in enumerate(standing.steps):
        if step_id not in known:
            message = f"no step is called `{one_line(step_id)[:60]}`"
            problems.append(Problem("unknown-step", at=join("steps", index), message=message, hint=did_you_mean(step_id, frozenset(known))))
    return problems
