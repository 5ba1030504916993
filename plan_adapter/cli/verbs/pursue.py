"""`plan pursue`."""

from typing import TYPE_CHECKING, Any

from plan_adapter.cli import output as streams
from plan_adapter.cli.daemon_thread import in_daemon_thread
from plan_adapter.cli.drafting import Destination, DraftJob, ask_for_tools, draft_json, print_report
from plan_adapter.cli.exit_codes import ExitCode, UsageError
from plan_adapter.cli.foreground import ForegroundRun, RunOptions, begin_server
from plan_adapter.cli.sources import drafting_tools_of, model_of, open_store, tools_of
from plan_adapter.cli.verbs.draft import context_of, draft_with_model, request_faults, request_of
from plan_adapter.local.settings import Settings
from plan_adapter.model.drafts import PlanRequest
from plan_adapter.model.readable import one_line, visible
from plan_adapter.runs.secret_lookup import model_redactor
from plan_adapter.validation import bind_inputs, validate

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from plan_adapter.agent.openai_model import OpenAIModel
    from plan_adapter.agent.summary import RunSummary
    from plan_adapter.engine.connection import Server
    from plan_adapter.model.plan import ExecutionPlan
    from plan_adapter.model.record import PlanRun


async def pursue(
    goal: str,
    /,
    *,
    context: str | None = None,
    constraint: list[str] | None = None,
    max_steps: int | None = None,
    secret: list[str] | None = None,
    allow: list[str] | None = None,
    allow_tool: list[str] | None = None,
    tools: list[str] | None = None,
    model: str | None = None,
    model_url: str | None = None,
    offline: bool = False,
    detach: bool = False,
    json: bool = False,
) -> int:
    """Pursue a goal in words: a model drafts a plan, you approve it, it runs, and the model summarizes the result.

    The plan is drafted as by `plan draft`, and runs as with `plan run`. Nothing runs before a person has approved the plan. The summary
    goes to stdout and, with a server, to the page of the run as an artifact: first what the record says, then the words of the model,
    marked as such. If the model does not answer, the summary is only what the record says.

    If the run is left waiting, there is no summary: `plan show RUN` shows its result.

    Args:
        goal: What is wanted, in words.
        context: What the model needs to know: a text, a JSON object, or `@FILE` with either (JSON or YAML by its name).
        constraint: A rule that the plan must keep, such as "back up first"; may be repeated.
        max_steps: The largest number of steps that the plan may have.
        secret: A name that the plan may use as `${{ secrets.NAME }}`; may be repeated. The model never sees its value.
        allow: A permission that the plan gives to its tools; may be repeated. Without it, no tool that needs the permission can be used.
        allow_tool: The name of a tool that the model may use; may be repeated. If you name one of your own tools, it gets only the named
            ones.
        tools: `package.module:name` of a tool or registry that the model may use; may be repeated.
        model: The model's name; default: PLAN_ADAPTER_MODEL.
        model_url: The base URL of a server with OpenAI's chat completions; default: PLAN_ADAPTER_MODEL_URL.
        offline: Run without Prefect: same steps, same record, no UI.
        detach: Do not wait for answers: leave the run waiting and exit with 6.
        json: Print the draft, the events, the run and the summary as JSON Lines.
    """
    faults = list[str]()
    registry, shown_context = drafting_tools_of(tools or [], allow_tool or []), context_of(context, faults)
    if not len(registry) and not faults:
        registry = await ask_for_tools(tools or [])
    request = request_of(goal, registry, context=shown_context, constraint=constraint, max_steps=max_steps, secret=secret, allow=allow)
    if faults := [*faults, *request_faults(request, registry)]:
        raise UsageError("; ".join(faults))
    language_model = model_of(Settings(), model, model_url)
    job = DraftJob(request, registry, Destination(None, force=False, tools=tuple(tools or ())), as_json=json)
    try:
        draft, question = await draft_with_model(language_model, job)
        if json:
            streams.json_line("draft", draft_json(draft, question=question))
        print_report(draft)
        if question is not None:
            streams.note("answer it at a terminal, or say it with --context")
            return ExitCode.USAGE
        if draft.plan is None:
            return ExitCode.FAILED
        return await _run_drafted_plan(
            draft.plan, language_model, request, RunOptions(yes=False, detach=detach, json=json), tools or [], offline=offline
        )
    finally:
        await language_model.aclose()


async def _run_drafted_plan(
    plan: "ExecutionPlan", model: "OpenAIModel", request: PlanRequest, options: RunOptions, imports: list[str], *, offline: bool
) -> int:
    """Run the drafted plan once a person has approved it, and print the summary."""
    from plan_adapter.runs.start import execute_plan  # imports SQLAlchemy

    settings, summaries = Settings(), list["RunSummary"]()
    pending = begin_server(settings, offline=offline)
    async with open_store(settings) as store:
        registry = tools_of(imports)
        server = await in_daemon_thread(pending.wait) if pending is not None else None
        foreground = ForegroundRun(server, options, store=store, tools=registry, imports=imports)
        bound = bind_inputs(validate(plan, registry), {}, from_text=True)
        execution = execute_plan(bound, run_request=foreground.request(settings), store=store, offline=offline, record_pending=True)
        code = await foreground.complete(_run_and_summarize(execution, model, request, server, summaries))
    for summary in summaries:
        if options.json:
            streams.json_line("summary", {"facts": summary.facts, "summary": summary.by_model or None})
        else:
            streams.line(visible(summary.text))
        if summary.failure:
            streams.note(f"the model wrote no summary: {one_line(summary.failure)}")
    return code


async def _run_and_summarize(
    execution: "Coroutine[Any, Any, PlanRun]",
    model: "OpenAIModel",
    request: PlanRequest,
    server: "Server | None",
    summaries: "list[RunSummary]",
) -> "PlanRun":
    """Return the run of `execution`. If it has ended, add its summary to `summaries` and to its page in Prefect."""
    from plan_adapter.agent.summary import summarize

    run = await execution
    if run.status.has_ended and run.started_at is not None:
        summaries.append(await summarize(request.task, run, model, await model_redactor(Settings(), request.available_secrets)))
        if server is not None and run.flow_run_id is not None:
            await _publish_to_page(summaries[0].text, run.flow_run_id, server)
    return run


async def _publish_to_page(text: str, flow_run_id: str, server: "Server") -> None:
    from plan_adapter.engine.connection import use_server
    from plan_adapter.engine.draft_flow import publish_summary  # imports Prefect

    with use_server(server):
        await publish_summary(text, flow_run_id)
