"""Checks a plan's permissions against its tools, and its gates: who can answer them, and what no gate covers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from pydantic import JsonValue

from plan_adapter.expressions import Expression, Prediction, Template, Variables, has_expression, sources_of
from plan_adapter.model.approvals import people_in
from plan_adapter.model.errors import ExpressionError
from plan_adapter.model.options import ApprovalPolicy, Effect
from plan_adapter.model.plan import ExecutionPlan, Step
from plan_adapter.model.problems import Problem
from plan_adapter.model.readable import counted, duration, is_secret_name, one_line, visible
from plan_adapter.model.values import join
from plan_adapter.validation.calls import Call
from plan_adapter.validation.findings import Findings
from plan_adapter.validation.inputs import read_values
from plan_adapter.validation.pinned_plans import move_to_step

if TYPE_CHECKING:
    from plan_adapter.validation.validated import ValidatedPlan

CODE = "bad-permission"

MAX_DECIDED = 50
"""How many permissions the inputs of a run may give. Gates show all of them."""

MAX_CHARACTERS = 100
"""How long the name of a permission that the inputs of a run give may be."""

_LIST_KINDS = ("dyn", "list", "list(string)", "list(dyn)")
"""The types of expressions that may give a list of names."""


def check_permissions(plans: Sequence[ExecutionPlan], calls: list[Call], findings: Findings) -> None:
    """Add the problems of the permissions that a plan gives, and one for each call whose tool needs another.

    `plans` are the plan and those around it. A tool gets only what all of them give. What the inputs decide is checked with the inputs.
    """
    plan = plans[0]
    for index, name in enumerate([] if isinstance(plan.permissions, str) else plan.permissions):
        at = f"permissions[{index}]"
        if has_expression(name):
            hint = "write the whole list as one expression: `permissions: ${{ … }}`"
            findings.add(CODE, at, "an entry of the list cannot be an expression", hint)
        elif _cannot_be_permission(name):
            hint = "write the name as the tool declares it, without spaces around it and without invisible characters"
            findings.add(CODE, at, f"{name[:80]!r} cannot be a permission", hint)
        elif name in plan.permissions[:index]:
            findings.warn("duplicate-entry", at, f"`{name[:80]}` is written twice", "remove one of them")
    written = [(each, each.permissions) for each in plans if not isinstance(each.permissions, str)]
    for call in calls:
        for field, tool in (("tool_name", call.tool), ("rollback.tool_name", call.rollback_tool)):
            lacking = [(each, given) for each, given in written if tool is not None and tool.why_not_permitted(given) is not None]
            if tool is not None and lacking:
                first, given = lacking[0]
                giver = "the plan" if first is plan else f"the plan around it, `{one_line(first.name)}`,"
                names = (
                    "the plan" if len(lacking) == 1 and first is plan else " and ".join(f"`{one_line(each.name)}`" for each, _ in lacking)
                )
                hint = f"let the step call another tool, or let a person add the name to `permissions` of {names}"
                findings.add("not-permitted", f"{call.at}.{field}", tool.why_not_permitted(given, giver=giver) or "", hint)


def _cannot_be_permission(name: str) -> bool:
    return not name.strip() or name != name.strip() or visible(name) != name or not name.isprintable()


def check_expression(plan: ExecutionPlan, template: Template, findings: Findings) -> None:
    """Add the problems of the compiled expression that gives the permissions of `plan`, besides those of its compilation."""
    for parts in template.texts.values():
        for part in parts:
            if isinstance(part, Expression) and part.kind not in _LIST_KINDS:
                hint = "permissions are texts: the names that tools declare"
                findings.add("expression-type", "permissions", f"{part} is a {part.kind}, not a list of texts", hint)
    for name in sorted(template.inputs & plan.inputs.keys()):
        if is_secret_name(name):
            message = f"the permissions use the input `{name}`, whose value is secret, and gates show permissions"
            findings.add(CODE, "permissions", message, "use another input, or rename it if its value is not secret")


def check_early_inputs(call: Call, early: Iterable[str], findings: Findings) -> frozenset[str]:
    """Return the inputs of the plan around that decide permissions of the plan that `call` runs, which depend on its inputs `early`.

    Adds a problem for each of these whose value is not known before the run.
    """
    used = set[str]()
    step = call.step
    for name in sorted(name for name in early if name in step.inputs):
        paths = _paths_in(step.inputs[name], call.parameters)
        if others := sorted({f"`{'.'.join(map(str, path[:2]))}`" for path in paths if path[0] != "inputs"}):
            message = f"permissions of the plan that the step runs depend on its input `{name}`, which {', '.join(others)} decides too late"
            hint = "give the input a value or an expression over `inputs`, or write the permissions of that plan as a list"
            findings.add(CODE, join(f"{call.at}.inputs", name), message, hint)
        names = {str(path[1]) for path in paths if path[0] == "inputs" and len(path) > 1}
        for secret in sorted(filter(is_secret_name, names)):
            message = (
                f"permissions of the plan that the step runs depend on the input `{secret}`, whose value is secret, and gates show them"
            )
            findings.add(CODE, join(f"{call.at}.inputs", name), message, "use another input, or rename it if its value is not secret")
        used |= names
    return frozenset(used)


def _paths_in(value: JsonValue, template: Template) -> set[tuple[str | int, ...]]:
    """Return what the expressions in `value`, a part of `template`, refer to."""
    expressions = (part for text in _texts_in(value) for part in template.texts.get(text, ()) if isinstance(part, Expression))
    return {variable.path for expression in expressions for variable in expression.variables}


def _texts_in(value: JsonValue) -> Iterable[str]:
    if isinstance(value, str):
        return [value]
    members = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for member in members for text in _texts_in(member)]


def decide_permissions(validated: "ValidatedPlan", inputs: Mapping[str, JsonValue]) -> "tuple[ValidatedPlan, list[Problem]]":
    """Return `validated` with the permissions that `inputs` give, and every problem: bad names, and calls that lack a permission."""
    if not validated.permissions:
        return validated, []
    known, problems, decided = KnownInputs(validated, inputs), list[Problem](), dict[str, tuple[str, ...]]()
    places = {step.id: at for at, step in validated.plan.places.items()}
    for runner_id, template in validated.permissions.items():
        runner = None if not runner_id else validated.steps[runner_id]
        at = f"{places[runner_id]}.pinned.permissions" if runner is not None else "permissions"
        try:
            value = known.resolve(template, runner)
        except BadInputsError as error:
            problems += [move_to_step(problem, places[error.runner]) for problem in error.problems]
        except ExpressionError as error:
            problems.append(Problem(CODE, at=at, message=str(error), hint="change the inputs of the run, or the expression"))
        else:
            if (wrong := _why_no_permissions(value)) is not None:
                sources = ", ".join(f"`{source}`" for source in sources_of(str(template.source))) or "its expression"
                hint = f"the permissions come from {sources}"
                problems.append(Problem(CODE, at=at, message=wrong, hint=hint))
            else:
                decided[runner_id] = tuple(dict.fromkeys(cast("list[str]", value)))
    bound = replace(validated, decided_permissions=decided)
    return bound, [*dict.fromkeys(problems)] or _refused_calls(bound, known)


def _why_no_permissions(value: JsonValue) -> str | None:
    """Return why `value` is no list of permissions, without its texts, which come from whoever starts the run. None if it is one."""
    if not isinstance(value, list):
        return "the expression gives no list"
    if len(value) > MAX_DECIDED:
        return f"the expression gives {len(value)} permissions, and a run may get {MAX_DECIDED}"
    for number, name in enumerate(value, 1):
        if not isinstance(name, str):
            return f"entry {number} of the list that the expression gives is not a text"
        if _cannot_be_permission(name):
            return f"entry {number} of the list that the expression gives is empty, or has spaces around it or invisible characters"
        if len(name) > MAX_CHARACTERS:
            return f"entry {number} of the list that the expression gives is longer than {MAX_CHARACTERS} characters"
    return None


def _refused_calls(bound: "ValidatedPlan", known: "KnownInputs") -> list[Problem]:
    """Return a problem for each call whose tool lacks a permission in this run, unless its `when` is false with these inputs."""
    found = list[Problem]()
    for at, step in bound.plan.places.items():
        permissions = bound.permissions_at(step)
        rollback = bound.rollbacks.get(step.id)
        for field, tool in (("tool_name", bound.tools.get(step.id)), ("rollback.tool_name", None if rollback is None else rollback.tool)):
            refusal = None if tool is None else tool.why_not_permitted(permissions.names, giver="this run")
            if refusal is None or not permissions.expressions or known.is_skipped(step):
                continue
            sources = ", ".join(f"`{source}`" for source in sources_of(*permissions.expressions)) or "an expression"
            hint = f"its permissions come from {sources}: change the inputs, or skip the step with a `when` over them"
            found.append(Problem("not-permitted", at=f"{at}.{field}", message=refusal, hint=hint))
    return found


class BadInputsError(Exception):
    """A sub-plan gets inputs that do not fit."""

    def __init__(self, runner: str, problems: list[Problem]) -> None:
        super().__init__(runner)
        self.runner = runner
        self.problems = problems


class KnownInputs:
    """The inputs of a plan and of the plans inside it, as far as the inputs of the run determine them."""

    def __init__(self, validated: "ValidatedPlan", inputs: Mapping[str, JsonValue]) -> None:
        self._validated = validated
        self._inputs = inputs

    def resolve(self, template: Template, runner: Step | None) -> JsonValue:
        """Return the value of `template`, from the plan that `runner` runs, or from the whole plan. Raises ExpressionError."""
        return template.resolve(Variables(steps={}, inputs={name: self.value(name, runner) for name in template.inputs}))

    def is_skipped(self, step: Step) -> bool:
        """Return whether `when` of the step, or of one around it, is false whatever the steps of the run return."""
        if (outer := step.outer) is not None and self.is_skipped(self._validated.steps[outer]):
            return True
        when = self._validated.when.get(step.id)
        if when is None or any(path[0] != "inputs" for path in _paths_in(when.source, when)):
            return False
        try:
            return self.resolve(when, step.within) is False
        except (ExpressionError, BadInputsError):
            return False

    def value(self, name: str, runner: Step | None) -> JsonValue:
        """Return an input of the plan that `runner` runs. Raises ExpressionError if it is not known before the run."""
        if runner is None or runner.pinned is None:
            return self._inputs[name]
        given = dict[str, JsonValue]()
        if name in runner.inputs:
            whole, source = self._validated.parameters[runner.id], runner.inputs[name]
            paths = _paths_in(source, whole)
            if any(path[0] != "inputs" for path in paths):
                raise ExpressionError(f"the input `{name}` of `{runner.id}` is not known before the run")
            used = frozenset(str(path[1]) for path in paths)
            given[name] = self.resolve(Template(source, texts=whole.texts, inputs=used), runner.within)
        values, problems = read_values({name: runner.pinned.inputs[name]}, given, from_text=False)
        if problems:
            raise BadInputsError(runner.id, problems)
        return values[name]


MANY_GATES = 20
"""How many items of one step may each ask for an approval without a warning."""

_UNDERMINED_PROOFS = {
    "unverified": frozenset({"ssh_signature", "totp", "sign_in", "proxy", "slack", "os_user", "form"}),
    # Terminal accounts next to names in a form may be intended. A proof next to a mere claim is a mistake.
    "form": frozenset({"ssh_signature", "totp", "sign_in", "proxy", "slack"}),
}
"""The proofs that are worthless if the policy also accepts a method that lets anyone claim a name, by that method."""


def check_gates(plans: Sequence[ExecutionPlan], calls: list[Call], inner: list[Call], findings: Findings, *, has_inner_gates: bool) -> bool:
    """Add the problems of a plan's gate policy, and warnings about its parts that have no effect. Return whether any step has a gate.

    `plans` are the plan and those around it. `calls` are its own, `inner` those of the plans inside it. `has_inner_gates`: whether a step
    of these has a gate.
    """
    plan, *around = plans
    gated = [call for call in calls if _has_gate(plans, call)]
    if plan.approval is not None:
        _check_names(plan.approval, findings)
        _check_known_by(plan.approval, findings)
        _check_quorum(plan.approval, findings)
        _check_entries_once(plan.approval, findings)
        _check_additions(plan.approval, findings)
        _check_always_execute(plan.approval, around, [*calls, *inner], findings)
        _check_has_effect(plan, findings, gates=bool(gated) or has_inner_gates)
        _check_times(plan.approval, plan.options.approval_timeout_ms, findings)
    for call in calls:
        if call.step.ask is not None and call.step.expires and not plan.options.approval_timeout_ms:
            message, hint = "nothing expires: gates wait for an answer without limit", "set options.approval_timeout_ms"
            findings.warn("idle-policy", f"{call.at}.expires", message, hint)
        if call.step.ask is not None and plan.approval is not None and plan.approval.quorum > 1:
            message = "one person answers a question: `approval.quorum` counts for approvals only"
            findings.warn("idle-policy", f"{call.at}.ask", message, "let a step after it ask for an approval, if several must agree")
    for call in gated:
        _check_items(call, f"{call.at}.for_each", findings)
    return bool(gated) or has_inner_gates


def check_answerable(plan: ExecutionPlan, calls: Iterable[Call], places: Mapping[str, str], findings: Findings) -> None:
    """Add a warning for the gates of a whole plan where its approvers or proofs, and those of the plans inside it, leave nobody.

    `places` are those of the steps in the document, by id.
    """
    found = dict[str, list[Step]]()
    for call in calls:
        if _has_gate(plan.plans_at(call.step), call, plan) and (why := plan.why_nobody_answers(call.step)) is not None:
            found.setdefault(why, []).append(call.step)
    for why, (first, *others) in found.items():
        more = f" and {counted(len(others), 'more step')}" if others else ""
        message = f"nobody may answer at the gate of `{first.id}`{more}: {why}"
        hint = "let these plans accept a name and a proof in common; a group in one list counts as its members"
        findings.warn("nobody-may-answer", places[first.id], message, hint)


def _has_gate(plans: Sequence[ExecutionPlan], call: Call, owner: ExecutionPlan | None = None) -> bool:
    """Return whether a step of the first of `plans`, which the others are around, has a gate. `owner`: the plan that knows the step."""
    for tool in call.goal_tools:  # each call that writes waits, unless all plans always execute it
        if tool.effect != "read" and any(tool.name not in plan.always_executed for plan in plans):
            return True
    rollback = None if call.rollback_tool is None else call.rollback_tool.effect
    effect = None if call.tool is None else call.tool.effect
    demanded: set[Effect] = {each for plan in plans[1:] if plan.approval is not None for each in plan.approval.effects}
    return (owner or plans[0]).has_gate(call.step, effect, rollback=rollback, gate_effects=demanded)


def _check_names(policy: ApprovalPolicy, findings: Findings) -> None:
    lists = [("bad-approver", "approvers", policy.approvers), ("bad-operator", "operators", policy.operators)]
    lists += [("bad-approver", "escalate.to", policy.escalate.to)] if policy.escalate is not None else []
    for code, field, names in lists:
        for index, name in enumerate(names):
            at = f"approval.{field}[{index}]"
            if not name.strip():
                findings.add(code, at, "the name is empty", "write a name or a group, or remove the entry")
            elif name != name.strip() or visible(name) != name or not name.isprintable():
                findings.add(code, at, f"{name[:80]!r} cannot be a name", "remove the spaces or the invisible characters")


def _check_known_by(policy: ApprovalPolicy, findings: Findings) -> None:
    for index, method in enumerate(policy.known_by):
        if undermined := [other for other in policy.known_by if other in _UNDERMINED_PROOFS.get(method, ())]:
            message = f"`{method}` lets anyone claim a name, so {' or '.join(dict.fromkeys(undermined))} proves nothing"
            findings.warn("weak-proof", f"approval.known_by[{index}]", message, f"remove `{method}`")


def _check_quorum(policy: ApprovalPolicy, findings: Findings) -> None:
    """Add the problems of a quorum: without approvers, with fewer than it needs, or with names that anyone can claim."""
    if policy.quorum <= 1:
        return
    names = people_in(policy.approvers)
    if not names:
        message = f"{policy.quorum} different people must approve, and no `approvers` are named: one person could type several names"
        findings.add("bad-quorum", "approval.quorum", message, "name the people who may approve in approval.approvers")
    elif len(names) < policy.quorum:
        message = f"{policy.quorum} different people must approve, and `approvers` has {counted(len(names), 'name')}"
        findings.warn("bad-quorum", "approval.quorum", message, "no run starts unless one of them is a group with enough members")
    claims = [index for index, method in enumerate(policy.known_by) if method in ("form", "unverified")]
    if claims or not policy.known_by:
        at = f"approval.known_by[{claims[0]}]" if claims else "approval.quorum"
        message = "one person can claim several names (`form`, `unverified`), so the quorum proves nothing"
        findings.warn("weak-proof", at, message, "accept proofs only: `known_by: [ssh_signature, totp]`")


def _check_entries_once(policy: ApprovalPolicy, findings: Findings) -> None:
    lists: Iterable[tuple[str, list[str]]] = (
        ("approvers", policy.approvers),
        ("operators", policy.operators),
        ("known_by", [*policy.known_by]),
        ("effects", [*policy.effects]),
        ("always_execute", policy.always_execute),
        ("escalate.to", [] if policy.escalate is None else policy.escalate.to),
    )
    for field, entries in lists:
        seen: set[str] = set()
        for index, entry in enumerate(entries):
            if entry in seen and entry.strip():
                findings.warn("duplicate-entry", f"approval.{field}[{index}]", f"`{entry[:80]}` is written twice", "remove one of them")
            seen.add(entry)


def _check_always_execute(policy: ApprovalPolicy, around: Sequence[ExecutionPlan], calls: list[Call], findings: Findings) -> None:
    writes = {tool.name for call in calls for tool in call.goal_tools if tool.effect != "read"}
    for index, name in enumerate(policy.always_execute):
        if name not in writes:
            message = f"no goal has a tool `{name[:80]}` that writes, so nobody would be asked about it anyway"
            findings.add("bad-goal", f"approval.always_execute[{index}]", message, "name a tool of a goal, or remove the entry")
        elif any(name not in plan.always_executed for plan in around):
            message = f"a plan around this one does not have `{name[:80]}` in its `always_execute`, so each call asks"
            hint = "add it to `approval.always_execute` of every plan around this one, if models may call it without a confirmation"
            findings.warn("idle-policy", f"approval.always_execute[{index}]", message, hint)


def _check_has_effect(plan: ExecutionPlan, findings: Findings, *, gates: bool) -> None:
    options, policy = plan.options, plan.approval or ApprovalPolicy()
    concerns_approvals = policy.model_copy(update={"operators": []}) != ApprovalPolicy() or not policy.operators
    if gates or not concerns_approvals or (options.require_approval and not options.auto_approve):
        return
    option = "require_approval: false" if not options.require_approval else "auto_approve: true"
    message = f"nobody is asked: the plan has `{option}`, and no step has a gate of its own"
    findings.warn("idle-policy", "approval", message, f"remove it, or `{option}`; it applies only if the settings require an approval")


def _check_additions(policy: ApprovalPolicy, findings: Findings) -> None:
    """Add the problems of an escalation and of delegation: without anybody, or without an effect."""
    if policy.escalate is not None and not policy.escalate.to:
        findings.add("bad-approver", "approval.escalate.to", "the gate escalates to nobody", "name the people who may then answer as well")
    if policy.escalate is not None and policy.approvers and not {*policy.escalate.to} - {*policy.approvers}:
        message = "everybody here may answer already, so they are only told"
        findings.warn("idle-policy", "approval.escalate.to", message, "name other people, or use `remind_after_ms`")
    if policy.delegate and not policy.approvers:
        message = "anyone may answer, so there is nothing to delegate"
        findings.warn("idle-policy", "approval.delegate", message, "name the people who may answer in approval.approvers")


def _check_times(policy: ApprovalPolicy, timeout_ms: int, findings: Findings) -> None:
    remind_ms = policy.remind_after_ms
    if timeout_ms:
        if policy.escalate is not None and policy.escalate.after_ms >= timeout_ms:
            message = f"no gate is open for {duration(policy.escalate.after_ms)}: gates expire after {duration(timeout_ms)}"
            findings.warn("idle-policy", "approval.escalate.after_ms", message, "escalate earlier than options.approval_timeout_ms")
        if remind_ms >= timeout_ms:
            message = f"no gate is open for {duration(remind_ms)}: gates expire after {duration(timeout_ms)}"
            findings.warn("idle-policy", "approval.remind_after_ms", message, "remind earlier than options.approval_timeout_ms")
        return
    hint = "set options.approval_timeout_ms"
    if policy.expires == "skip":
        findings.warn("idle-policy", "approval.expires", "nothing expires: gates wait for an answer without limit", hint)
    if remind_ms:
        message = f"a gate without an answer sends a reminder every {duration(remind_ms)} forever"
        findings.warn("endless-gate", "approval.remind_after_ms", message, hint)
    if policy.release:
        message = "a run that released its worker waits for its answer without limit"
        findings.warn("endless-gate", "approval.release", message, hint)


def _check_items(call: Call, at: str, findings: Findings) -> None:
    if call.for_each is None:
        return
    items = Prediction(None).of(call.for_each)
    if isinstance(items, list) and len(items) > MANY_GATES:
        message = f"each of {counted(len(items), 'item')} waits for an approval of its own"
        findings.warn("many-gates", at, message, "require one approval for the whole plan instead, or use fewer items")
