"""A preview in Markdown: what a run of a plan would do, step by step."""

from plan_adapter.listing import policy_facts, step_listing, step_patience
from plan_adapter.plan import ExecutionOptions
from plan_adapter.preview import Preview, StepPreview
from plan_adapter.readable import as_text, code, duration, prose


def preview_text(preview: Preview) -> str:
    """Return `preview` as Markdown, complete: what an approver reads. No text of the plan can break out of its place."""
    plan = preview.plan
    lines = [f"# {prose(plan.name)}", "", prose(plan.description), "", *_facts(preview), "", "## Steps", ""]
    for number, step in enumerate(preview.steps, start=1):
        lines += [*_step_lines(step, number), ""]
    return "\n".join(lines).rstrip() + "\n"


def _facts(preview: Preview) -> list[str]:
    options = preview.plan.options
    effects = ", ".join(f"{count} {effect}" for effect, count in preview.effects.items())
    parallel = f"at most {options.parallel_limit} at once" if options.parallel_limit > 1 else "one at a time"
    facts = [f"- plan digest: `{preview.digest}`"]
    if preview.approval_digest is not None:
        facts.append(f"- approval digest: `{preview.approval_digest}`")
    facts.append("- approval: " + ("required before anything runs" if preview.requires_approval else "not required"))
    asks = preview.requires_approval or any(step.gate for step in preview.steps)
    facts += [f"- {fact}" for fact in policy_facts(preview.plan, asks=asks, gate_effects=preview.gate_effects)]
    facts += [f"- input {code(name)}: {code(as_text(value))}" for name, value in preview.inputs.items()]
    facts += [f"- input {code(name)}: still to be given" for name in preview.missing]
    facts += [f"- uses the secrets: {', '.join(map(code, preview.secrets))}"] if preview.secrets else []
    facts.append(f"- steps: {len(preview.steps)} ({effects}), {parallel}; when one fails: {options.on_error}")
    final = ", ".join(code(step.step.id) for step in preview.irreversible)
    facts.append(f"- **cannot be undone: {final}**" if final else "- nothing in it that could not be undone")
    facts.append(f"- worst case: {_limit(preview.worst_case_ms)}" + _total(options) + _endless(preview))
    facts += [f"- output {code(name)}: {code(as_text(value))}" for name, value in preview.plan.outputs.items()]
    return facts


def _limit(ms: float | None) -> str:
    return "no limit" if ms is None else duration(ms)


def _total(options: ExecutionOptions) -> str:
    return f" (total timeout {duration(options.total_timeout_ms)})" if options.total_timeout_ms else ""


def _endless(preview: Preview) -> str:
    if preview.worst_case_ms is not None:
        return ""
    endless = [code(step.step.id) for step in preview.steps if step.worst_case_ms is None]
    return f" (no timeout: {', '.join(endless[:5])}{', …' if len(endless) > 5 else ''})"


def _step_lines(preview: StepPreview, number: int) -> list[str]:
    longest = f"; worst case {_limit(preview.worst_case_ms)}" if preview.step.max_retries or preview.items != 1 else ""
    head, *lines = step_listing(
        preview.step,
        number=number,
        effect=preview.effect,
        depends_on=preview.depends_on,
        implied=preview.implied,
        parameters=preview.parameters,
        items=preview.items,
        patience=step_patience(preview.step, preview.timeout_ms) + longest,
        gate=preview.gate,
        rollback=None if preview.rollback is None else (preview.rollback.effect, preview.rollback.parameters),
    )
    return [head, *([] if preview.depends_on else ["   - waits for no other step"]), *lines]
