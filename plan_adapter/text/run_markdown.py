"""`run_markdown`: how a run ended, why, what is left behind and how each step and item ended, as Markdown for an artifact."""

from collections.abc import Iterator

from plan_adapter.model.language import tr
from plan_adapter.model.readable import code, counted, listed, words
from plan_adapter.text.run_facts import NOTHING_LEFT, SHAPES, RunFacts, StepFacts, started_text, trigger_text

SHOWN_CALLS = 20
SHOWN_ITEMS = 100
SHOWN_STEPS = 500


def run_markdown(facts: RunFacts) -> str:
    """Return the report of a run. All texts are escaped."""
    lines = [f"## {SHAPES[facts.mark]} {words(facts.outcome)}: {words(facts.full_name)}", ""]
    if facts.cause is not None:
        lines += [words(facts.cause), ""]
    for left in facts.left_behind:
        calls = f": {listed([code(call) for call in left.calls], SHOWN_CALLS)}" if left.calls else ""
        lines += [f"**{words(left.what)}**{calls}", ""]
    if facts.is_undone:
        lines += [f"{tr(NOTHING_LEFT).capitalize()}.", ""]
    show, report = code(f"plan show {facts.id}"), code(f"plan report {facts.id}")
    lines += [tr("{show} says what to type next; {report} writes everything to one HTML file.", show=show, report=report), ""]
    lines += [f"- {tr('output {name}', name=code(name))}: {code(value)}" for name, value in facts.outputs.items()]
    lines += [f"- {tr('input {name}', name=code(name))}: {code(value)}" for name, value in facts.inputs.items()]
    lines += [f"- {trigger_text(facts.trigger)}"] if facts.trigger is not None else []
    lines += [f"- {started_text(facts, words)}: {words(facts.progress)}", "", f"### {tr('Steps')}", ""]
    for step in facts.steps[:SHOWN_STEPS]:
        lines += _step_lines(step)
    if len(facts.steps) > SHOWN_STEPS:
        lines.append(f"- {counted(len(facts.steps) - SHOWN_STEPS, 'more step')}")
    return "\n".join(lines) + "\n"


def _step_lines(step: StepFacts) -> Iterator[str]:
    indent = "  " * step.depth
    yield f"{indent}- {SHAPES[step.mark]} **{words(step.id)}** ({words(step.what)}){': ' if step.detail else ''}{words(step.detail)}"
    for item in step.items[:SHOWN_ITEMS]:
        calls = ", ".join(f"{SHAPES[call.mark]} {words(call.step_id)}" for call in item.calls)
        text = ": ".join(part for part in (calls, words(item.detail)) if part)
        yield f"{indent}  - {SHAPES[item.mark]} {words(item.label)}{': ' if text else ''}{text}"
    if len(step.items) > SHOWN_ITEMS:
        yield f"{indent}  - {counted(len(step.items) - SHOWN_ITEMS, 'more item')}"
