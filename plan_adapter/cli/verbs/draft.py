"""`plan draft`."""

import asyncio
import json as json_module
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from cyclopts import Parameter

from plan_adapter.cli import output as streams
from plan_adapter.cli.drafting import Destination, DraftJob, TerminalAsker, ask_for_tools, call_line, draft_json, report
from plan_adapter.cli.exit_codes import ExitCode, UsageError
from plan_adapter.cli.sources import STDIN, drafting_tools_of, model_of, open_store, read_source_text
from plan_adapter.documents import read_mapping
from plan_adapter.local.settings import Settings
from plan_adapter.model.drafts import Draft, ModelCall, PlanRequest
from plan_adapter.model.errors import InvalidPlanError, ModelError, ToolDefinitionError
from plan_adapter.model.plan import new_id
from plan_adapter.model.readable import listed
from plan_adapter.model.values import find_bad_values
from plan_adapter.runs.secret_lookup import model_redactor

if TYPE_CHECKING:
    from plan_adapter.agent.openai_model import OpenAIModel
    from plan_adapter.execution.redactor import Redactor
    from plan_adapter.tools.registry import ToolRegistry


SHOWN_TOOLS = 20
"""How many tools are named when the draft starts."""


async def draft(
    task: str | None = None,
    /,
    *,
    resume: str | None = None,
    context: str | None = None,
    constraint: list[str] | None = None,
    max_steps: int | None = None,
    secret: list[str] | None = None,
    allow: list[str] | None = None,
    allow_tool: list[str] | None = None,
    tools: list[str] | None = None,
    model: str | None = None,
    model_url: str | None = None,
    output: Annotated[Path | None, Parameter(name=("--output", "-o"))] = None,
    force: bool = False,
    print_prompt: bool = False,
    answer: str | None = None,
    json: bool = False,
) -> int:
    """Draft a plan from a task in words: a model plans, every answer is checked, and problems go back to the model.

    The plan goes to stdout or a file; everything else goes to stderr: the rounds, the model's questions, how each constraint is kept, the
    cost. Nothing runs, and the plan needs an approval. The store keeps every question and answer.

    The model sees the task, the context, and only the tools that you name: those of --tools, PLAN_ADAPTER_TOOLS and the entry points, and
    the built-in ones that you name with --allow-tool. If there are none, you are asked for names at the terminal.

    --resume continues a draft whose process died, was interrupted or could not reach its model; you pay for no answer twice.

    Without a model of your own, --print-prompt prints a prompt for any chat, and --answer checks what the chat said; problems are printed
    as text to paste back.

    Args:
        task: What is to be done, in words; `-` for stdin.
        resume: The id of a draft to continue, or its beginning, instead of a task. It keeps everything it was started with except --tools.
        context: What the model needs to know: a text, a JSON object, or `@FILE` with either (JSON or YAML by its name). Known secrets and
            values under names like `password` are redacted; the model sees everything else.
        constraint: A rule that the plan must keep, such as "back up first"; may be repeated. An order of steps is checked; the report says
            which constraints were not.
        max_steps: The largest number of steps that the plan may have.
        secret: A name that the plan may use as `${{ secrets.NAME }}`; may be repeated. The model never sees its value.
        allow: A permission that the plan gives to its tools; may be repeated. Without it, no tool that needs the permission can be used.
        allow_tool: The name of a tool that the model may use; may be repeated. If you name one of your own tools, it gets only the named
            ones.
        tools: `package.module:name` of a tool or registry that the model may use; may be repeated.
        model: The model's name; default: PLAN_ADAPTER_MODEL. Its key is PLAN_ADAPTER_MODEL_KEY, else OPENAI_API_KEY.
        model_url: The base URL of a server with OpenAI's chat completions; default: PLAN_ADAPTER_MODEL_URL.
        output: The file to write: YAML, or JSON if its name ends in .json; default: stdout.
        force: Overwrite that file.
        print_prompt: Ask no model; print the prompt.
        answer: A file with the answer of a chat to that prompt, `-` for stdin; asks no model.
        json: Print one JSON object: plan, constraints, notes, calls, problems, failure.
    """
    if print_prompt and answer is not None:
        raise UsageError("give --print-prompt or --answer, not both")
    if task == STDIN and answer == STDIN:
        raise UsageError("stdin can hold the task or the answer, not both: put one of them in a file")
    faults, destination = list[str](), Destination(output, force=force, tools=tuple(tools or ()))
    if resume is not None:
        if (
            task is not None
            or context
            or constraint
            or max_steps is not None
            or secret
            or allow
            or allow_tool
            or print_prompt
            or answer is not None
        ):
            raise UsageError(
                "--resume continues a draft as it was started: give no task, and only the options --tools, --model, -o and --json"
            )
        return await _resume_draft(resume, tools or [], destination, _configured_model(model, model_url, faults), faults, as_json=json)
    if task is None:
        raise UsageError(
            "say in words what is to be done (`-` for stdin), or continue a draft: --resume ID (`plan show --draft` lists them)"
        )
    registry = drafting_tools_of(tools or [], allow_tool or [])
    task_text = read_source_text(STDIN, "the task") if task == STDIN else task
    shown_context = context_of(context, faults)
    configured = None if print_prompt or answer is not None else _configured_model(model, model_url, faults)
    faults += destination.faults()
    if not len(registry) and not faults:
        registry = await ask_for_tools(tools or [])
    request = request_of(task_text, registry, context=shown_context, constraint=constraint, max_steps=max_steps, secret=secret, allow=allow)
    faults += request_faults(request, registry)
    if faults:
        raise UsageError("; ".join(faults))
    job = DraftJob(request, registry, destination, as_json=json)
    return await (_run_draft(job, configured) if configured is not None else _draft_by_hand(job, answer))


def request_of(
    task: str,
    tools: "ToolRegistry",
    *,
    context: str | dict[str, Any],
    constraint: list[str] | None,
    max_steps: int | None,
    secret: list[str] | None,
    allow: list[str] | None,
) -> PlanRequest:
    """Return the request for a draft from the options of a command, with all of `tools`."""
    return PlanRequest(
        task=task.strip(),
        context=context,
        constraints=tuple(constraint or ()),
        max_steps=max_steps,
        available_tools=tuple(tools.names()),
        available_secrets=tuple(secret or ()),
        permissions=tuple(allow or ()),
    )


async def _resume_draft(
    beginning: str, tools: list[str], destination: Destination, model: "OpenAIModel | None", faults: list[str], *, as_json: bool
) -> int:
    """Continue a stored draft with the current model and tools."""
    async with open_store(Settings()) as store:
        draft = await store.drafts.get(beginning)
    faults += destination.faults()
    if faults or model is None:
        raise UsageError("; ".join(faults))
    names = draft.request.available_tools or ()
    try:
        registry = drafting_tools_of(tools, names)
    except ToolDefinitionError as error:
        raise UsageError(f"draft {draft.id} may plan with {', '.join(names)}: {error}; give the --tools it was started with") from error
    return await _run_draft(DraftJob(draft.request, registry, destination, as_json), model, resumed=draft)


def context_of(text: str | None, faults: list[str]) -> str | dict[str, Any]:
    """Return the context of `--context`: a text, a JSON object, or the content of a file. Faults are added to `faults`."""
    if text is None:
        return {}
    if text.startswith("@"):
        return _read_context_file(Path(text[1:]))
    if not text.lstrip().startswith(("{", "[")):
        return text.strip()
    try:
        value: Any = json_module.loads(text)
    except (ValueError, RecursionError) as error:
        faults.append(f"--context starts like JSON but is not ({error}); for a file write --context @FILE")
        return {}
    if not isinstance(value, dict):
        faults.append('--context is neither a JSON object, such as {"host": "web-1"}, nor a text; for a file write --context @FILE')
        return {}
    return cast("dict[str, Any]", value)


def _read_context_file(path: Path) -> str | dict[str, Any]:
    if path.suffix.lower() not in (".json", ".yaml", ".yml"):
        return read_source_text(str(path), "the context").strip()
    values, problems = read_mapping(str(path))
    if values is None or problems:
        raise InvalidPlanError(problems)
    return values


def request_faults(request: PlanRequest, tools: "ToolRegistry") -> list[str]:
    """Return everything that is wrong with the request, before the model is asked."""
    from plan_adapter.tools.registry import ToolRegistry  # builds the schemas of all tools

    context = request.context if isinstance(request.context, str) else dict(request.context)
    given = {"TASK": request.task, "--context": context, "--constraint": [*request.constraints], "--allow": [*request.permissions]}
    faults = [f"{problem.at}: {problem.message}" for problem in find_bad_values(given)]
    if not request.task:
        faults.append("TASK is empty: say in words what is to be done")
    if any(not text.strip() for text in request.constraints):
        faults.append("a --constraint is empty")
    if any(not name.strip() for name in request.permissions):
        faults.append("an --allow is empty")
    if request.max_steps is not None and request.max_steps < 1:
        faults.append("--max-steps is less than 1")
    if not len(tools):
        names = listed(ToolRegistry.with_builtins().names(), SHOWN_TOOLS)
        faults.append(
            f"there are no tools to plan with: name built-in ones that the model may use, as in --allow-tool http_get ({names}), "
            "or your own, --tools package.module:name; `plan tools` describes them"
        )
    return faults


def _configured_model(name: str | None, url: str | None, faults: list[str]) -> "OpenAIModel | None":
    try:
        return model_of(Settings(), name, url)
    except UsageError as error:
        faults.append(f"{error}; `--print-prompt` needs no model (see `plan draft --help`)")
        return None


async def _run_draft(job: DraftJob, model: "OpenAIModel", *, resumed: Draft | None = None) -> int:
    """Draft with a model, write the plan and report, and return the exit code. `resumed`: the draft to continue."""
    started = time.monotonic()
    try:
        drafted, question = await draft_with_model(model, job, resumed=resumed)
    finally:
        await model.aclose()
    if job.as_json:
        streams.json_line("draft", draft_json(drafted, question=question))
    code = report(drafted, job.destination, as_json=job.as_json)
    if question is not None:
        streams.note(f"answer it at a terminal; {_continue_hint(job, drafted.id)}")
        return ExitCode.USAGE
    if drafted.plan is None and time.monotonic() - started >= Settings().draft_timeout_seconds:
        streams.note(f"PLAN_ADAPTER_DRAFT_TIMEOUT_SECONDS sets a longer limit; {_continue_hint(job, drafted.id)}")
    return code


async def draft_with_model(model: "OpenAIModel", job: DraftJob, *, resumed: Draft | None = None) -> tuple[Draft, str | None]:
    """Draft with a model, showing each round. Return the draft, and the model's question if nobody answered it.

    `resumed`: the draft to continue. Raises ModelError, whose message says how to continue.
    """
    from plan_adapter.agent.planner import Budget, Planner  # only where a model drafts

    settings, asker, draft_id = Settings(), TerminalAsker(), resumed.id if resumed is not None else new_id()
    kept_numbers = {call.number for call in resumed.calls} if resumed is not None else set[int]()

    def on_call(call: ModelCall) -> None:
        streams.note(call_line(call) + ("; kept from before" if call.number in kept_numbers else ""))

    streams.note(f"draft {draft_id}: asking {model.name}, which may plan with {listed(job.tools.names(), SHOWN_TOOLS)}")
    try:
        redactor = await model_redactor(settings, job.request.available_secrets)
        async with open_store(settings) as store:
            planner = Planner(
                model, job.tools, asker=asker, budget=Budget.of(settings), keep=store.drafts, redactor=redactor, on_call=on_call
            )
            drafted = await planner.drafted(job.request, draft_id=draft_id)
    except asyncio.CancelledError:
        streams.note(_continue_hint(job, draft_id))
        raise
    except ModelError as error:
        raise ModelError(f"{error}\n{_continue_hint(job, draft_id)}") from None
    return drafted, asker.unanswered


def _continue_hint(job: DraftJob, draft_id: str) -> str:
    return f"the answers so far are kept; continue with: {job.destination.resume_command(draft_id)}"


async def _draft_by_hand(job: DraftJob, answer: str | None) -> int:
    """Print the prompt for a chat, or check its answer: a file, or `-` for stdin."""
    from plan_adapter.runs.secret_lookup import model_redactor

    redactor = await model_redactor(Settings(), job.request.available_secrets)
    return (
        _print_prompt(job, redactor) if answer is None else await _check_chat_answer(job, read_source_text(answer, "the answer"), redactor)
    )


def _print_prompt(job: DraftJob, redactor: "Redactor") -> int:
    from plan_adapter.agent.chat import prompt_for_chat
    from plan_adapter.agent.prompts import redact_request, redaction_note

    messages = prompt_for_chat(job.request, job.tools, redactor=redactor)
    if job.as_json:
        streams.json_line("prompt", {"messages": [{"role": message.role, "content": message.content} for message in messages]})
    if hidden := redact_request(job.request, redactor)[1]:
        streams.note(f"note: {redaction_note(hidden)}")
    if not job.as_json or job.destination.path is not None:
        job.destination.write("\n\n".join(message.content for message in messages) + "\n")
        streams.note("paste this into any chat, save its answer, and run the same command with --answer FILE, without --print-prompt")
    return ExitCode.DONE


async def _check_chat_answer(job: DraftJob, text: str, redactor: "Redactor") -> int:
    """Check the answer of a chat, store the draft, and print its problems as text for the chat."""
    from plan_adapter.agent.chat import draft_from_chat

    result = draft_from_chat(job.request, job.tools, text, redactor=redactor)
    async with open_store(Settings()) as store:
        await store.drafts.keep(result.draft, result.draft.calls[0])
        await store.drafts.end(result.draft)
    if job.as_json:
        streams.json_line("draft", {**draft_json(result.draft, question=result.question), "reply": result.reply})
    if result.question is not None:
        streams.note(f"the model asks: {result.question}\nanswer it in the chat, and run again with --answer and what comes back")
        return ExitCode.USAGE
    if result.reply is not None:
        if not job.as_json:
            streams.document(result.reply + "\n")
        streams.note(f"{result.draft.failure}: paste stdout into the chat, and run again with --answer and what comes back")
        return ExitCode.FAILED
    return report(result.draft, job.destination, as_json=job.as_json)
