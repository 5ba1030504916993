"""`plan show`."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from plan_adapter.cli import output
from plan_adapter.cli.approval_state import ApprovalState, approval_state_of, gate_line, listed_state
from plan_adapter.cli.exit_codes import ExitCode, UsageError, without_hint
from plan_adapter.cli.records import gate_json, run_json, version_json
from plan_adapter.cli.run_view import run_lines
from plan_adapter.cli.sources import STORE_PREFIX, is_document, open_store, plan_of
from plan_adapter.cli.verbs.gates import field_text
from plan_adapter.documents import dump_plan
from plan_adapter.gates.tool_changes import CodeChange, code_changes
from plan_adapter.local.settings import Settings
from plan_adapter.model.canonical import plan_digest
from plan_adapter.model.errors import NotStoredError, RunNotFoundError
from plan_adapter.model.language import tr
from plan_adapter.model.problems import did_you_mean
from plan_adapter.model.readable import code, counted, item_number, moment, one_line, plain, prose
from plan_adapter.text.commands import ANY_FIELDS, answer_command
from plan_adapter.text.formatting import StepCallRecord, calls_of, dependencies_of, format_plan
from plan_adapter.text.gate_text import split_text
from plan_adapter.text.preview import name_of_run
from plan_adapter.text.run_facts import RunAccount, RunFacts, run_facts, trigger_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from plan_adapter.model.approvals import Gate
    from plan_adapter.model.options import Trigger
    from plan_adapter.model.plan import ExecutionPlan, Step
    from plan_adapter.model.record import Attempt, PlanRun, Receipt
    from plan_adapter.model.rounds import RoundRecord
    from plan_adapter.model.triggers import TriggerRecord
    from plan_adapter.store.store import PlanStore
    from plan_adapter.text.formatting import Dependencies

SHOWN_CHARACTERS = 500
"""How many characters of an error are shown."""

SHOWN_GATES = 5
"""How many open gates of a run are shown."""


async def show(
    plan_or_run: str | None = None,
    /,
    *,
    all_: Annotated[bool, Parameter(name="--all")] = False,
    long: bool = False,
    versions: bool = False,
    draft: bool = False,
    json: bool = False,
) -> int:
    """Show a plan with all its dependencies, or a run: how it ended or what it asks, why, what to type next, and its steps and items.

    With `--all`, a run is shown with everything that is recorded: parameters (secrets masked), results, every attempt, and where the code
    of a tool changed between attempts.

    Args:
        plan_or_run: A plan, named as for `plan run`, or a run: its id, the beginning or end of it, or `last`.
        all_: Show everything that is recorded of a run, as Markdown.
        long: Print the document of the plan, or of the plan of the run, without short forms, as the digest covers it.
        versions: List the versions of the stored plan with that name, newest first, with the events that start each one while it is
            deployed; without a name, the newest version of every one.
        draft: Show the draft with that id, with every question to the model and its answer; without an id, list the newest drafts.
        json: Print one JSON object; a run has its `steps` with their `calls` and `rounds`, open `gates`, `approvals`, `code_changes`,
            `earlier_steps` and what to type `next`.
    """
    if draft:
        await _show_drafts(plan_or_run, as_json=json)
        return ExitCode.DONE
    if versions:
        return await _list_versions(plan_or_run, as_json=json)
    if plan_or_run is None:
        raise UsageError("show what? a plan, a run, `--versions` for the stored plans, or `--draft` for the newest drafts")
    found = await find_plan_or_run(plan_or_run)
    if long:
        output.line(dump_plan(found.plan if isinstance(found, ShownRun) else found).rstrip("\n"))
        return ExitCode.DONE
    if isinstance(found, ShownRun):
        _show_run(found, as_json=json, shows_all=all_)
        return ExitCode.DONE
    plan_object = _plan_json(found, plan_digest(found))  # raises the problems of the plan's document: with problems it has no digest
    if json:
        output.json_line("plan", plan_object)
    else:
        output.markdown(format_plan(found).rstrip("\n"))
    return ExitCode.DONE


async def _list_versions(name: str | None, *, as_json: bool) -> int:
    """Print the versions of a stored plan, newest first; without a name, the newest version of every stored plan."""
    async with open_store(Settings()) as store:
        names = await store.names()
        if name is None:
            found = [(await store.versions(plan_name))[0] for plan_name in names]
        else:
            found = await store.versions(name.removeprefix(STORE_PREFIX))
        triggers = [(await store.get(version.digest)).triggers for version in found]
    if name is not None and not found:
        raise UsageError(f"no plan is stored as `{name}`", hint=did_you_mean(name, names) or "`plan save FILE` stores one")
    if found and as_json:
        for version, starts in zip(found, triggers, strict=True):
            started_by = [trigger.model_dump(mode="json", exclude_defaults=True) for trigger in starts]
            output.json_line("version", {**(version_json(version) or {}), "created_at": version.created_at, "triggers": started_by})
    elif found:
        rows = [
            (f"{version.name}@{version.version}", version.digest[:12], version.author, moment(version.created_at), _events_text(starts))
            for version, starts in zip(found, triggers, strict=True)
        ]
        shown = 5 if any(triggers) else 4
        output.table(("VERSION", "DIGEST", "SAVED BY", "SAVED", "STARTED BY")[:shown], [row[:shown] for row in rows])
    else:
        output.note("no plan is stored yet; `plan save FILE` stores one")
    return ExitCode.DONE


def _events_text(triggers: "Sequence[Trigger]") -> str:
    """Return the events that start a version, each with its resource, as for `plan deploy --trigger`."""
    return one_line(", ".join("@".join([trigger.event, *trigger.resource.values()]) for trigger in triggers))


async def _show_drafts(beginning: str | None, *, as_json: bool) -> None:
    # Only for drafts.
    from plan_adapter.cli.drafting import draft_json
    from plan_adapter.text.draft_text import draft_line, draft_text

    async with open_store(Settings()) as store:
        found = await store.drafts.newest() if beginning is None else [await store.drafts.get(beginning)]
    for draft in found:
        if as_json:
            output.json_line("draft", draft_json(draft, question=None))
        else:
            output.markdown(draft_line(draft) if beginning is None else draft_text(draft, whole=True).rstrip("\n"))
    if not found:
        output.note("no drafts yet")


@dataclass(frozen=True, slots=True)
class ShownRun:
    """A run, and what `plan show` adds to its record."""

    state: ApprovalState
    code: list[CodeChange]
    calls: dict[str, list[StepCallRecord]]
    rounds: "dict[str, list[RoundRecord]]"  # of its goals
    earlier: list[dict[str, Any]]  # steps of earlier versions that the plan no longer has
    facts: RunFacts
    listed: str  # its outcome, or what it waits for
    next_text: str | None  # what to type
    plan: "ExecutionPlan"
    attempts: "Sequence[Attempt]"
    receipts: "Sequence[Receipt]"
    trigger: "TriggerRecord | None" = None  # the event that started it
    override: str | None = None  # who asked to override a change freeze for it, and why
    variables: Mapping[str, str] = field(default_factory=dict[str, str])  # the Prefect variables that gave it values, by input


def _show_run(found: ShownRun, *, as_json: bool, shows_all: bool) -> None:
    state, run = found.state, found.state.run
    if as_json:
        gates, answers = (
            [gate_json(gate) for gate in state.gates],
            [{**asdict(answer), "item": item_number(answer.item)} for answer in state.answers],
        )
        changed = [_code_change_json(change) for change in found.code]
        shown = run_json(run, steps=True)
        for step in shown["steps"]:
            step["calls"] = [{**asdict(call), "item": item_number(call.item)} for call in found.calls.get(step["id"], ())]
            if step["id"] in found.rounds:
                step["rounds"] = [asdict(round_) for round_ in found.rounds[step["id"]]]
        more = {"gates": gates, "approvals": answers, "code_changes": changed, "earlier_steps": found.earlier}
        more |= {
            "trigger": _trigger_json(found.trigger),
            "variables": dict(found.variables),
            "freeze_override": found.override,
            "next": found.next_text,
        }
        output.json_line("run", {**shown, **more})
        return
    if not shows_all:
        output.view(run_lines(account_of(found)))
        return
    changed = ["", "## Code", "", *(f"- {change}" for change in found.code)] if found.code else []
    removed = (
        ["", "## Steps of earlier versions", "", *(f"- {_earlier_step_line(step)}" for step in found.earlier)] if found.earlier else []
    )
    record = format_plan(run, standing=state.used_standing_approval, calls=found.calls, rounds=found.rounds)
    started = [line for text in _started_lines(found) for line in ("", text)]
    text = "\n".join([record.rstrip("\n"), *started, *removed, *changed, *state.lines()])
    output.markdown(text)
    if found.next_text is not None:
        output.note(found.next_text)


def _started_lines(found: ShownRun) -> list[str]:
    """Return which event started the run, which inputs came from Prefect variables, and who asked to override a change freeze for it."""
    texts = [] if found.trigger is None else [trigger_text(found.trigger)]
    texts += [
        tr("the input {name} came from the Prefect variable {variable}", name=code(name), variable=code(variable))
        for name, variable in found.variables.items()
    ]
    return texts + ([] if found.override is None else [tr("override of a change freeze: {asked}", asked=prose(found.override))])


def _trigger_json(trigger: "TriggerRecord | None") -> dict[str, Any] | None:
    return None if trigger is None else {"event": trigger.event, "event_id": trigger.event_id, "events": trigger.events}


def account_of(found: ShownRun) -> RunAccount:
    """Return the run as people read it."""
    state = found.state
    notes = [*_started_lines(found)]
    notes += [*map(_earlier_step_line, found.earlier), *(str(change) for change in found.code)]
    return RunAccount(
        facts=found.facts,
        state=found.listed,
        asked=[text for gate in state.gates[:SHOWN_GATES] for text in _asked_lines(gate, state.now, is_only=len(state.gates) == 1)],
        next_text=_next_at_gate(found.next_text, state.gates),
        approvals=[plain(text) for text in state.events()],
        notes=[plain(note) for note in notes],
        now=state.now,
    )


def _next_at_gate(next_text: str | None, gates: "Sequence[Gate]") -> str | None:
    """Return what to type. If the run waits at just one gate, that includes the fields of its question, or how to refuse the approval."""
    if next_text is None or len(gates) != 1:
        return next_text
    (gate,) = gates
    is_asked = gate.kind == "approval" and answer_command(gate) in next_text  # not if nobody may answer
    refuse = tr("; `{command}` refuses it", command=answer_command(gate, "reject")) if is_asked else ""
    shown = next_text.replace(ANY_FIELDS, " ".join(f"{name}=…" for name in gate.fields))
    before, lists, after = shown.partition(tr("; `plan gates` lists everything that waits"))
    return f"{before}{refuse}{lists}{after}"


def _asked_lines(gate: "Gate", now: "datetime", *, is_only: bool) -> list[str]:
    """Return the question of a gate, who may answer, and since when it waits. The only gate is shown with its first screen."""
    what = one_line(gate.description)
    waits = plain(gate_line(gate, now))
    if gate.kind == "question":
        return [what, f"answer with {'; '.join(field_text(name, field) for name, field in gate.fields.items())}", waits]
    if is_only and gate.text:
        first, _ = split_text(gate.text)
        return [*(line for line in plain(first).splitlines() if line.strip()), waits]
    return [what, waits] if gate.step_id is not None and what else [waits]


def _earlier_steps(run: "PlanRun", attempts: "list[Attempt]", receipts: "list[Receipt]") -> list[dict[str, Any]]:
    """Return the steps that started but are no longer in the plan of `run`, in the order in which they started."""
    steps, errors = {step.id for step in run.steps}, {receipt.step_id: receipt.error for receipt in receipts}
    removed = [attempt for attempt in attempts if attempt.step_id not in steps and attempt.kind == "step"]
    counts = Counter(attempt.step_id for attempt in removed)
    tools = {attempt.step_id: attempt.tool_name for attempt in removed}
    return [{"id": name, "tool_name": tools[name], "attempts": counts[name], "error": errors.get(name)} for name in counts]


def _earlier_step_line(step: dict[str, Any]) -> str:
    error = f": {code(step['error'][:SHOWN_CHARACTERS])}" if step["error"] else ""
    return f"{code(step['id'])} ({code(step['tool_name'])}): did not succeed in {counted(step['attempts'], 'attempt')}{error}"


def _code_change_json(change: CodeChange) -> dict[str, Any]:
    attempts = {"before": change.before, "after": change.after}
    where = {
        name: {"step": attempt.step_id, "item": item_number(attempt.item), "attempt": attempt.number} for name, attempt in attempts.items()
    }
    return {"tool": change.tool_name, **where}


async def find_plan_or_run(source: str) -> "ExecutionPlan | ShownRun":
    """Return the plan or the run that `source` names. Raises UsageError, StoreError and InvalidPlanError."""
    # Run ids and plan digests are both hexadecimal, so look for a file with that name first, then for a run, then for a plan.
    if source.startswith(STORE_PREFIX) or is_document(source):
        return await plan_of(source)
    settings = Settings()
    async with open_store(settings) as store:
        try:
            return await shown_run(source, store, settings)
        except RunNotFoundError as no_run:
            try:
                return await plan_of(source, store)
            except (NotStoredError, UsageError) as no_plan:
                if no_run.is_ambiguous:  # the plan was not meant
                    raise no_run from None
                raise UsageError(f"{no_run}; {without_hint(no_plan)}", hint=no_plan.hint, code="run-not-found") from no_plan


async def shown_run(run_id: str, store: "PlanStore", settings: Settings) -> ShownRun:
    """Return the run with this id, or its beginning or end. Raises RunNotFoundError."""
    from plan_adapter.model.rounds import rounds_of  # only for runs
    from plan_adapter.runs.plan_approval import end_overdue  # imports SQLAlchemy

    run = await end_overdue(await store.run(run_id), store)
    attempts = await store.attempts(run.id)
    receipts = await store.receipts(run.id)
    commands = await store.outcomes.commands(run.id)
    calls = calls_of(run, attempts, receipts, commands)
    earlier = _earlier_steps(run, attempts, receipts)
    state = await approval_state_of(run, store, settings)
    rounds = rounds_of(receipts, attempts, state.answers)
    plan = await store.get(run.digest)
    facts = run_facts(
        run,
        attempts,
        receipts,
        commands,
        run_name=name_of_run(plan, run.inputs),
        waiting=[(gate.step_id, gate.item) for gate in state.gates],
    )
    return ShownRun(
        state,
        code_changes(attempts),
        calls,
        rounds,
        earlier,
        facts,
        listed_state(run, state.gates, state).text,
        state.hint(),
        plan,
        attempts,
        receipts,
        await store.trigger_events.of_run(run.id),
        await store.operator_requests.override(run.id),
        await store.ledger.variables(run.id),
    )


def _plan_json(plan: "ExecutionPlan", digest: str) -> dict[str, Any]:
    after = dependencies_of(plan)
    lists = {"steps": plan.steps, **({"finally": plan.finally_} if plan.finally_ else {})}
    shown = {name: [_step_json(step, after[step.id]) for step in steps] for name, steps in lists.items()}
    return {"plan_digest": digest, "digest": digest, **plan.to_document(), "name": plan.name, **shown}


def _step_json(step: "Step", after: "Dependencies") -> dict[str, Any]:
    written = step.model_dump(mode="json", exclude_defaults=True)
    return {**written, "depends_on": list(after.all), "implied_by_reference": list(after.implied)}
