"""Steps and gate policies as lines of a Markdown list, shared by the texts of plans and of previews."""

from collections.abc import Collection, Mapping, Sequence

from pydantic import JsonValue

from plan_adapter.expressions import sources_of
from plan_adapter.model.language import later, tr
from plan_adapter.model.options import EFFECTS, ApprovalPolicy, Effect, ErrorPolicy, Input, Trigger
from plan_adapter.model.plan import MAX_ROUNDS, ExecutionPlan, Permissions, Step, flattened, step_fields
from plan_adapter.model.readable import as_text, code, counted, duration, fenced, listed, prose
from plan_adapter.validation.inputs import limits_in_words

REPLAN_FACT = later(
    "when failed steps end the run: a model redrafts the remaining steps, at most twice, and each new version needs an approval"
)


def step_listing(
    step: Step,
    *,
    number: int,
    effect: Effect | None,
    lowered_from: Effect | None = None,
    depends_on: Collection[str],
    implied: Collection[str],
    parameters: Mapping[str, JsonValue],
    attempt_limits: str,
    items: int | None = None,
    gate: bool = False,
    rollback: tuple[Effect | None, Mapping[str, JsonValue]] | None = None,
    is_finally_step: bool = False,
    at_once: int = 1,
    on_error: ErrorPolicy = "stop",
    facts: Collection[str] = (),
) -> list[str]:
    """Return the lines of one step.

    `lowered_from` is the effect of its tool if the plan declares a lower one. `implied` are the dependencies that come only from a
    reference. `attempt_limits` is the phrase about timeout and retries. `gate` means that the step has its own gate. `rollback` is the
    effect, if known, and the parameters of its rollback. `at_once` is how many items of a group are in progress at once, and `on_error` its
    error policy. `facts` are those about a goal, or about the plan that the step runs.
    """
    what = (
        tr("group")
        if step.is_group
        else tr("plan {plan}", plan=code(step.plan))
        if step.plan is not None
        else tr("goal: {goal}", goal=prose(step.goal or ""))
        if step.goal is not None
        else code(step.called)
    )
    head = f"{number}. **{prose(step.id)}** {what}" + (f" ({effect})" if effect and not step.inner else "")
    lines = [head + (f": {prose(step.description)}" if step.description else "")]
    lines += [f"   - {lowered_fact(step, lowered_from)}"] if lowered_from is not None else []
    lines += [f"   - {tr('always runs, after all other steps have ended')}"] if is_finally_step else []
    if depends_on:
        before = ", ".join(code(name) + (tr(" (by reference)") if name in implied else "") for name in depends_on)
        lines.append(f"   - {tr('after {steps}', steps=before)}")
    lines += [f"   - {tr('in the group {group}', group=code(step.group))}"] if step.group is not None else []
    lines += [f"   - {fact}" for fact in (*group_facts(step, items, at_once, on_error), *facts)]
    for name, text in labelled_facts(step).items():
        count = f" ({counted(items, 'item')})" if name == "for_each" and items is not None else ""
        lines.append(f"   - {label_of(name)}: {code(text)}{count}")
    if step.ask is not None:
        who = tr(": {names} may answer", names=either(step.approvers)) if step.approvers else ""
        lines.append(f"   - {tr('**asks a person**')}{who}")
    elif gate and (step.goal is None or step.requires_approval):
        is_each = step.for_each is not None and (not step.is_group or step.requires_approval == "each")
        lines.append(f"   - {tr('**waits for an approval of its own**')}{tr(', each item') if is_each else ''}")
    for name, value in parameters.items():
        lines += _parameter_lines(code(name), value)
    lines += [] if step.ask is None else [f"   {field_line(name, field)}" for name, field in step.ask.fields.items()]
    lines += [f"   - {attempt_limits}"] if attempt_limits and step.ask is None else []
    return [*lines, *_rollback_lines(step, *rollback)] if rollback is not None else lines


def lowered_fact(step: Step, lowered_from: Effect) -> str:
    """Return the fact that the plan declares a lower effect for a step than that of its tool."""
    return tr("**declared as {effect}: {tool} counts as {own}**", effect=step.effect, tool=code(step.called), own=lowered_from)


def labelled_facts(step: Step) -> dict[str, str]:
    """Return the values of the fields that are shown with a label, by name. Those of a group leave out its list, which its facts name."""
    return {name: text for name, text in step.labelled_fields.items() if name != "for_each" or not step.is_group}


def label_of(field: str) -> str:
    """Return what people read before the value of a field."""
    return tr(step_fields()[field].label or field)


def either(names: Sequence[str]) -> str:
    """Return names as alternatives: `ana` or `bo`."""
    return tr(" or ").join(map(code, names))


def list_names(ids: Sequence[str], limit: int = 5) -> str:
    """Return the first names, and how many more there are."""
    return listed([code(name) for name in ids], limit)


def created_by(creators: Sequence[str]) -> str:
    """Return a phrase about the steps that create a secret."""
    names = list_names(creators)
    return tr("is created by steps {steps}", steps=names) if len(creators) > 1 else tr("is created by step {step}", step=names)


def secrets_fact(secrets: Sequence[str], creators: Mapping[str, Sequence[str]], most: int) -> str:
    """Return a phrase with the first `most` of the secrets that are passed to tools. `creators` are the steps that create some of them."""
    names = [code(name) + (f" ({created_by(creators[name])})" if name in creators else "") for name in secrets]
    return tr("uses the secrets: {names}", names=listed(names, most))


def group_facts(group: Step, items: int | None, at_once: int, on_error: ErrorPolicy) -> list[str]:
    """Return what a group does with its items, one fact per line. Empty for any other step."""
    if not group.is_group:
        return []
    listed_items = code(group.for_each or "")
    each = tr("for each item of {list}", list=listed_items)
    scope = each if items is None else tr("for each of {items} of {list}", items=counted(items, "item"), list=listed_items)
    pace = tr("one at a time") if at_once == 1 else tr("at most {count} at once", count=at_once)
    steps = ", ".join(code(step.id) for step in group.steps)
    allowed = str(group.max_failures)
    stop = tr("starts no further item after more than {share} failed", share=allowed)
    if allowed == "0":
        stop = tr("starts no further item after the first failed item")
    elif allowed.isdigit():
        stop = tr("starts no further item after more than {count} failed items", count=allowed)
    return [f"{scope}, {pace}: {steps}", stop, *rollback_facts(group, on_error)]


def error_policy_text(plan: ExecutionPlan) -> str:
    """Return the effect of a failed step on the rest of `plan`: one policy, or also the steps that differ from it.

    A group decides about the failures of its steps, and a plan about those of its own, so only the steps of `plan` itself count.
    """
    policies = {step.id: plan.on_error_of(step) for step in plan.steps}
    usual = plan.options.on_error
    other = "continue" if usual == "stop" else "stop"
    steps = [step_id for step_id, policy in policies.items() if policy == other]
    if not steps:
        return usual
    if len(steps) == len(policies):
        return other
    return tr("{policy}, but {other} after {steps}", policy=usual, other=other, steps=list_names(steps))


def rollback_facts(group: Step, on_error: ErrorPolicy) -> list[str]:
    """Return which items of a group are rolled back, and when, as one fact. Empty for a group that declares no rollback."""
    if not any(step.rollback is not None for step in group.steps):
        return []
    if on_error == "stop":
        if group.rollback_failed:
            return [tr("if the run fails, rolls back the items that completed, and those that failed")]
        return [tr("if the run fails, rolls back the items that completed")]
    if group.rollback_failed:
        return [tr("rolls back an item as soon as it has failed, and only that item; completed items stay")]
    return [tr("rolls back no item when an item fails; if another step ends the run, rolls back the items that completed")]


def sub_plan_facts(plan: ExecutionPlan, step: Step, permissions: Permissions) -> list[str]:
    """Return facts about the plan that a step of `plan` runs with `permissions`, one per line. Empty for any other step."""
    if step.pinned is None:
        return []
    policy = step.pinned.approval or ApprovalPolicy()
    calls = [inner for inner in flattened(step.inner) if inner.ask is None and not inner.inner]
    nobody = next((why for inner in calls if (why := plan.why_nobody_answers(inner)) is not None), None)
    who = [tr("at its gates may answer: {names}", names=either(policy.approvers))] if policy.approvers else []
    who += [tr("at its gates {count} different people must approve", count=policy.quorum)] if policy.quorum > 1 else []
    who = who if nobody is None else [tr("**nobody may answer at gates of its calls**: {why}", why=nobody)]
    allowed = permissions_facts(permissions)
    allowed += [always_execute_fact(always)] if (always := plan.always_executed_at(step)) else []
    runs = tr("runs {steps} of {plan}", steps=counted(len(step.pinned.steps), "step"), plan=prose(step.pinned.name))
    return [runs, *who, *allowed]


def indented(lines: list[str], depth: int) -> list[str]:
    """Return the lines of a step that is inside `depth` sub-plans."""
    return [f"{'   ' * depth}{line}" for line in lines]


def goal_facts(
    plan: ExecutionPlan, step: Step, tools: Mapping[str, Effect | None], *, refused: Collection[str] = (), is_decided: bool = True
) -> list[str]:
    """Return two lines: the tools that a model may call for a goal of `plan`, and the limits of the goal.

    `tools` maps the names of its tools to their effects, None if unknown. `refused` are the tools whose permission the plan does not give,
    or has not given before the inputs decide, if not `is_decided`.
    """
    allowed, always_execute = list[str](), plan.always_executed_at(step)
    listed = {name for each in plan.plans_at(step) for name in each.always_executed}
    for name, effect in tools.items():
        if name in refused:
            refused_now = tr("refused: the plan does not give its permission")
            asks = refused_now if is_decided else tr("only if the inputs of the run give its permission")
        elif name in always_execute:
            asks = tr("without a confirmation")
        elif name in listed:
            asks = tr("each call asks, because not every plan around the goal has it in `always_execute`")
        else:
            asks = tr("each call asks") if effect not in (None, "read") else ""
        about = ", ".join(text for text in (effect, asks) if text)
        allowed.append(code(name) + (f" ({about})" if about else ""))
    rounds = tr("at most {rounds}", rounds=counted(step.max_rounds or MAX_ROUNDS, "round"))
    calls = tr(", and {time} in calls", time=duration(step.timeout_ms)) if step.timeout_ms else ""
    return [tr("a model may call {tools}", tools=", ".join(allowed)), rounds + calls]


def field_line(name: str, field: Input) -> str:
    """Return a line about a field of a question: its name, title, type, choices and default."""
    kind = either([as_text(choice) for choice in field.enum]) if field.enum else field.type
    about = ", ".join(prose(text) for text in (field.title, field.description) if text)
    default = tr(", required") if field.is_required else tr(", by default {value}", value=code(as_text(field.default)))
    return f"- {code(name)}{f' ({about})' if about else ''}: {kind}{limits_of(field)}{default}"


def limits_of(field: Input) -> str:
    """Return the limits of a field, each after a comma."""
    return "".join(f", {limit}" for limit in limits_in_words(field))


def _rollback_lines(step: Step, effect: Effect | None, parameters: Mapping[str, JsonValue]) -> list[str]:
    tool = step.rollback.tool_name if step.rollback is not None else ""
    failed = tr(", also if the step failed") if step.rollback_failed else ""
    lines = [f"   - {tr('undone by {tool}', tool=code(tool))}" + (f" ({effect})" if effect else "") + failed]
    for name, value in parameters.items():
        lines += _parameter_lines(tr("undone with {name}", name=code(name)), value)
    return lines


def attempt_limits_text(step: Step, timeout_ms: int) -> str:
    """Return a phrase for the timeout and retries of `step`. A `timeout_ms` of 0 means no limit."""
    timeout = tr("timeout {time}", time=duration(timeout_ms)) if timeout_ms else tr("no timeout")
    if not step.max_retries:
        return timeout
    retries = counted(step.max_retries, "retry", "retries")
    if step.max_retries > 1:
        retries = tr("up to {retries}", retries=retries)
    if step.retry_delay_ms:
        retries += tr(" after {delay}", delay=duration(step.retry_delay_ms))
    if step.retry_backoff > 1 and step.max_retries > 1:
        retries += tr(", each wait {factor} times the previous one", factor=f"{step.retry_backoff:g}")
    if step.retry_delay_ms and step.retry_jitter:
        retries += tr(", varied by up to {share}", share=f"{step.retry_jitter:.0%}")
    return tr("{timeout} per attempt, {retries}", timeout=timeout, retries=retries)


def policy_facts(plan: ExecutionPlan, permissions: Permissions, *, asks: bool, gate_effects: Collection[Effect] = ()) -> list[str]:
    """Return the gate policy, one fact per line: operators, permissions, approvers, proof of identity, effects, timeout and expiry.

    `asks` says whether the plan or one of its steps waits for an approval; if not, the facts about approvals are left out. Of the settings,
    only `gate_effects` is included.
    """
    policy, timeout = plan.approval or ApprovalPolicy(), plan.options.approval_timeout_ms
    facts = [operators_fact(policy)] if policy.operators else []
    facts += permissions_facts(permissions)
    facts += [tr(REPLAN_FACT)] if plan.on_failure == "replan" else []
    if not asks or not (plan.approval or timeout or gate_effects):
        return facts
    who = tr("who may approve: {names}", names=either(policy.approvers) or tr("anyone"))
    if policy.quorum > 1:
        who += tr(", {count} different people together", count=policy.quorum)
    who += "" if policy.self_approval else tr(", but not the person who started the run")
    who += "" if policy.author_approval else tr(", but not an author of the plan")
    facts.append(who + (tr("; each may let another person answer") if policy.delegate else ""))
    if policy.escalate is not None:
        facts.append(escalation_fact(policy.escalate.after_ms, policy.escalate.to))
    proofs = tr(" or ").join(policy.known_by) or tr("in any way")
    facts.append(tr("how an approver must prove who they are: {proofs}", proofs=proofs))
    if policy.always_execute:
        facts.append(always_execute_fact(policy.always_execute))
    if effects := [effect for effect in EFFECTS if effect in policy.effects or effect in gate_effects]:
        gated = tr(" or ").join(effects)
        facts.append(tr("steps that wait for an approval of their own: those with the effect {effects}", effects=gated))
    return [*facts, _waiting_fact(policy, timeout)]


def trigger_facts(plan: ExecutionPlan) -> list[str]:
    """Return a phrase about each event that starts the plan once it is deployed."""
    return [_trigger_fact(trigger) for trigger in plan.triggers]


def _trigger_fact(trigger: Trigger) -> str:
    fact = tr("started by the event {event}", event=code(trigger.event))
    if trigger.resource:
        labels = ", ".join(code(f"{name}: {value}") for name, value in trigger.resource.items())
        fact += tr(" of resources with {labels}", labels=labels)
    fact += tr(", if {condition}", condition=code(trigger.when)) if trigger.when is not None else ""
    if trigger.inputs:
        fact += tr(", with {inputs}", inputs=", ".join(f"{code(name)} = {code(as_text(value))}" for name, value in trigger.inputs.items()))
    if trigger.fingerprint is None:
        return fact
    again = tr("; one run for equal {fingerprint}", fingerprint=code(trigger.fingerprint))
    return fact + again + (tr(" within {time}", time=duration(trigger.cooldown_ms)) if trigger.cooldown_ms else "")


def permissions_facts(permissions: Permissions) -> list[str]:
    """Return a phrase about the permissions that a plan gives, and which inputs give them. Empty if it can give none."""
    sources = ", ".join(code(source) for source in sources_of(*permissions.expressions))
    if not permissions.is_decided:
        return [tr("permissions that its tools get: decided by {source}", source=sources or tr("an expression"))]
    if not permissions.names and not permissions.expressions:
        return []
    names = ", ".join(map(code, permissions.names)) or tr("none")
    return [tr("permissions that its tools get: {names}", names=names) + (tr(" (from {source})", source=sources) if sources else "")]


def always_execute_fact(tools: Collection[str]) -> str:
    """Return a phrase about the tools in `always_execute`."""
    return tr("tools that models may call without a confirmation: {names}", names=", ".join(map(code, tools)))


def escalation_fact(after_ms: int, names: Sequence[str]) -> str:
    """Return a phrase about who else may answer once a gate has waited for so long."""
    return tr("if a gate waits for {time}, these may answer as well: {names}", time=duration(after_ms), names=either(names))


def operators_fact(policy: ApprovalPolicy) -> str:
    """Return a phrase about who may operate."""
    return tr("who may run, resume, revise, cancel and roll back: {names}", names=either(policy.operators))


def _waiting_fact(policy: ApprovalPolicy, timeout_ms: int) -> str:
    reminds = tr(", with a reminder every {time}", time=duration(policy.remind_after_ms)) if policy.remind_after_ms else ""
    released = tr("; while it waits, the run releases its worker") if policy.release else ""
    if not timeout_ms:
        return tr("a gate waits for an answer without limit") + reminds + released
    waits = tr("a gate waits {time} for an answer", time=duration(timeout_ms)) + reminds
    if policy.expires == "skip":
        return waits + tr("; without one, the plan is rejected, and a step is skipped with the steps that depend on it") + released
    return waits + tr("; without one, the plan or step is rejected") + released


def _parameter_lines(label: str, value: JsonValue) -> list[str]:
    if isinstance(value, str) and "\n" in value:
        return [f"   - {label}:", *(f"     {line}" for line in fenced(value).splitlines())]
    return [f"   - {label}: {code(as_text(value))}"]
