"""Checks the gate policy of a plan against its options and steps."""

from collections.abc import Iterable, Sequence

from plan_adapter.expressions import Prediction
from plan_adapter.options import ApprovalPolicy
from plan_adapter.plan import ExecutionPlan
from plan_adapter.readable import counted, duration, visible
from plan_adapter.validation.calls import Call
from plan_adapter.validation.findings import Findings

MANY_GATES = 20
"""How many items of one step may each ask for an approval without a warning."""

_UNDERMINED_PROOFS = {
    "unverified": frozenset({"ssh_signature", "totp", "os_user", "form"}),
    # Terminal accounts next to names in a form may be intended. A proof next to a mere claim is a mistake.
    "form": frozenset({"ssh_signature", "totp"}),
}
"""The proofs that are worthless if the policy also accepts a method that lets anyone claim a name, by that method."""


def check_gates(plans: Sequence[ExecutionPlan], calls: list[Call], inner: list[Call], findings: Findings) -> None:
    """Add the problems of a plan's gate policy, and warnings about its parts that have no effect.

    `plans` are the plan and those around it. `calls` are its own, `inner` those of the plans inside it.
    """
    plan, *around = plans
    gated = [call for call in calls if _has_gate(plans, call)]
    if plan.approval is not None:
        _check_names(plan.approval, findings)
        _check_known_by(plan.approval, findings)
        _check_entries_once(plan.approval, findings)
        _check_always_execute(plan.approval, around, [*calls, *inner], findings)
        _check_has_effect(plan, findings, gates=bool(gated))
        _check_times(plan.approval, plan.options.approval_timeout_ms, findings)
    for call in calls:
        if call.step.ask is not None and call.step.expires and not plan.options.approval_timeout_ms:
            message, hint = "nothing expires: gates wait for an answer without limit", "set options.approval_timeout_ms"
            findings.warn("idle-policy", f"{call.at}.expires", message, hint)
    for call in gated:
        _check_items(call, f"{call.at}.for_each", findings)


def _has_gate(plans: Sequence[ExecutionPlan], call: Call) -> bool:
    for tool in call.goal_tools:  # each call that writes waits, unless all plans always execute it
        if tool.effect != "read" and any(tool.name not in plan.always_executed for plan in plans):
            return True
    rollback = None if call.rollback_tool is None else call.rollback_tool.effect
    return plans[0].has_gate(call.step, None if call.tool is None else call.tool.effect, rollback=rollback)


def _check_names(policy: ApprovalPolicy, findings: Findings) -> None:
    for code, field, names in (("bad-approver", "approvers", policy.approvers), ("bad-operator", "operators", policy.operators)):
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


def _check_entries_once(policy: ApprovalPolicy, findings: Findings) -> None:
    lists: Iterable[tuple[str, list[str]]] = (
        ("approvers", policy.approvers),
        ("operators", policy.operators),
        ("known_by", [*policy.known_by]),
        ("effects", [*policy.effects]),
        ("always_execute", policy.always_execute),
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


def _check_times(policy: ApprovalPolicy, timeout_ms: int, findings: Findings) -> None:
    remind_ms = policy.remind_after_ms
    if timeout_ms:
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
