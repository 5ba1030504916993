"""`plan`: its verbs, and the only place where errors become messages and exit codes."""

import gc
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plan_adapter.cli import output
from plan_adapter.cli.codes import ExitCode, UsageError, code_of_error
from plan_adapter.problems import did_you_mean
from plan_adapter.readable import without_passwords

if TYPE_CHECKING:
    from cyclopts import App, UnusedCliTokensError
    from pydantic import ValidationError


@dataclass(frozen=True, slots=True)
class Verb:
    """One word after `plan`; the function of that name in the module of that name is imported when it is used."""

    name: str
    help: str
    first: bool = False  # one of those that help shows before the others
    function: str = ""  # where it is called otherwise, because Python has the word: `module:function`


VERBS = (
    Verb("init", "Write a starter plan that validates and runs", first=True),
    Verb("validate", "Find every problem of plans before anything runs", first=True),
    Verb("preview", "Show what a run would do: order, parameters, retries, effects, time", first=True),
    Verb("run", "Run a plan", first=True),
    Verb("gates", "List what waits for an approval", first=True),
    Verb("approve", "Approve what a run waits for", first=True),
    Verb("resume", "Go on with a run that stopped", first=True),
    Verb("show", "Show a plan, or a run with its steps", first=True),
    Verb("policy", "Show or set the policy that holds for every plan"),
    Verb("standing", "Approve a plan's scheduled runs in advance, list or revoke standing approvals"),
    Verb("enroll", "Set up one-time codes for a person who approves"),
    Verb("reject", "Reject what a run waits for, or ask for changes"),
    Verb("draft", "Draft a plan from a task in words, with a language model or by way of any chat"),
    Verb("revise", "Put a new version of its plan into a run"),
    Verb("promote", "Make a runbook of a run that went well: what varies becomes inputs"),
    Verb("cancel", "Cancel a run"),
    Verb("resolve", "Say how a write ended of which nobody knows it"),
    Verb("reconcile", "Find what ended processes left behind, and mend it"),
    Verb("runs", "List runs, the newest first, or verify the record of one"),
    Verb("logs", "Show what a run's steps wrote"),
    Verb("export", "Write the record of a run as a file that can be verified"),
    Verb("import", "Make plan documents of plans that other programs wrote", function="importing:import_plans"),
    Verb("mcp", "Let an agent draft, check and start plans: a server of MCP"),
    Verb("tools", "List the tools that plans may use"),
    Verb("schema", "Print the JSON Schema of plans, for editors"),
    Verb("explain", "Explain the code of a problem"),
    Verb("guide", "Read the handbook: `plan guide security` is about what is protected from whom"),
    Verb("store", "Show or upgrade the database of plans and runs, or print its grants"),
    Verb("doctor", "Say what is wrong with this installation, its server and its store"),
    Verb("down", "Stop the local Prefect server"),
)

OPTIONS = (
    ("--help", "This text; `plan VERB --help` tells about a verb"),
    ("--version", "The version of plan"),
    ("--debug", "Show the traceback of an unexpected error"),
    ("--install-completion", "Let your shell complete verbs and options"),
)

COMPLETION = {"--install-completion", "__complete"}
"""What cyclopts itself answers: the second is what installed completion scripts call."""

LOOKS_FOR_GARBAGE = (50_000, 10, 10)
"""After how many new objects Python looks for garbage (700 by itself): what a command imports and reads it keeps, and to look through
that again and again would take nearly as long as to read it."""

ISSUE_HINT = "`--debug` shows the whole traceback"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: this process's) and return its exit code."""
    gc.set_threshold(*LOOKS_FOR_GARBAGE)
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    debug = "--debug" in options
    if debug:
        arguments.remove("--debug")
    output.prepare_streams()
    try:
        code = _dispatch(arguments)
        output.flush()
    except BrokenPipeError:
        output.abandon_stdout()
        return ExitCode.DONE
    except KeyboardInterrupt:
        output.note("interrupted")
        return ExitCode.INTERRUPTED
    except Exception as error:
        if debug:
            raise
        return _report(error, as_json="--json" in options)
    except BaseException as error:
        if not _is_termination(error):
            raise
        return ExitCode.INTERRUPTED
    return code


def _is_termination(error: BaseException) -> bool:
    """Return whether Prefect's own handler of SIGTERM raised `error`; what a run says about its end was said then."""
    exceptions = sys.modules.get("prefect.exceptions")
    return exceptions is not None and isinstance(error, exceptions.TerminationSignal)


def help_text() -> str:
    """Return what `plan --help` prints."""
    first = _columns((verb.name, verb.help) for verb in VERBS if verb.first)
    more = _columns((verb.name, verb.help) for verb in VERBS if not verb.first)
    return (
        "Usage: plan VERB …\n\nCheck, preview, run and record execution plans as Prefect flows.\n\n"
        f"{first}\n\nMore:\n{more}\n\nOptions:\n{_columns(OPTIONS)}\n\n"
        "Exit codes: 0 done, 1 a step failed, 2 usage or invalid plan, 3 rejected or expired, 4 cancelled, 5 timed out,\n"
        "6 waiting for an approval, 7 an outcome is unknown, 130 interrupted"
    )


def _columns(rows: Iterable[tuple[str, str]]) -> str:
    listed = list(rows)
    width = max(len(left) for left, _ in listed)
    return "\n".join(f"  {left:<{width}}  {right}" for left, right in listed)


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("--help", "-h", "help"):
        return _help_for(arguments[1:])
    if arguments[0] == "--version":
        output.line(_version())
        return ExitCode.DONE
    if arguments[0] not in {verb.name for verb in VERBS} | COMPLETION:
        raise UsageError(f"there is no verb `{arguments[0]}`; {did_you_mean(arguments[0], [verb.name for verb in VERBS])}")
    if "-" in arguments:
        from plan_adapter.cli.sources import STDIN

        arguments = [STDIN if argument == "-" else argument for argument in arguments]
    result: Any = build_app()(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    return result if isinstance(result, int) else ExitCode.DONE


def _help_for(arguments: list[str]) -> int:
    if arguments and not arguments[0].startswith("-"):
        return _dispatch([arguments[0], "--help"])
    output.line(help_text())
    return ExitCode.DONE


def build_app() -> "App":
    """Return the command line as cyclopts knows it; no verb is imported yet."""
    from cyclopts import App, Parameter

    app = App(
        name="plan",
        help=help_text(),
        help_format="plaintext",
        version=_version,
        default_parameter=Parameter(negative=(), show_default=False),
        suppress_keyboard_interrupt=False,
    )
    for verb in VERBS:
        app.command(f"plan_adapter.cli.{verb.function or f'{verb.name}:{verb.name}'}", name=verb.name)
    app.register_install_completion_command()  # pyright: ignore[reportUnknownMemberType]  # cyclopts leaves its **kwargs untyped
    return app


def _version() -> str:
    from importlib.metadata import version

    return f"plan {version('prefect-plan-adapter')}"


def _report(error: Exception, *, as_json: bool) -> int:
    import traceback

    from cyclopts import CycloptsError, UnusedCliTokensError
    from pydantic import ValidationError

    from plan_adapter.errors import InvalidPlanError, PlanAdapterError

    if isinstance(error, InvalidPlanError):
        output.problems(error.problems, as_json=as_json, to_stdout=False)
        return ExitCode.USAGE
    if isinstance(error, UnusedCliTokensError):
        return _refuse("usage", _too_much(error), ExitCode.USAGE, as_json=as_json)
    if isinstance(error, CycloptsError):
        verb = " ".join(("plan", *(error.command_chain or ())))
        return _refuse("usage", f"{str(error).rstrip('.')}; `{verb} --help` tells more", ExitCode.USAGE, as_json=as_json)
    if isinstance(error, ValidationError) and error.title == "Settings":
        return _refuse("settings", _bad_settings(error), ExitCode.USAGE, as_json=as_json)
    if isinstance(error, UsageError):
        return _refuse("usage", str(error), ExitCode.USAGE, as_json=as_json)
    if isinstance(error, PlanAdapterError):
        return _refuse(type(error).__name__, str(error), code_of_error(error), as_json=as_json)
    said = " ".join(traceback.format_exception_only(error)[-1].split())
    kept = output.keep_traceback(error)
    where = f"the traceback is in {kept}, and {ISSUE_HINT}" if kept is not None else ISSUE_HINT
    return _refuse(type(error).__name__, f"unexpected {without_passwords(said)}; {where}", ExitCode.FAILED, as_json=as_json)


def _too_much(error: "UnusedCliTokensError") -> str:
    """Return which words of a command are too many, and what was perhaps meant."""
    verb, words = " ".join(("plan", *(error.command_chain or ()))), error.unused_tokens or []
    listed, are = ", ".join(f"`{word}`" for word in words), "is" if len(words) == 1 else "are"
    meant = f"write to a file with `--output {words[0]}`" if verb == "plan export" and len(words) == 1 else f"`{verb} --help` tells more"
    return f"{listed} {are} too many for `{verb}`; {meant}"


def _bad_settings(error: "ValidationError") -> str:
    """Return which variables of the environment are wrong and what they may be; never their values."""
    found = error.errors(include_input=False, include_url=False)
    return "; ".join(f"PLAN_ADAPTER_{'_'.join(str(part) for part in one['loc']).upper()}: {one['msg']}" for one in found)


def _refuse(kind: str, message: str, code: ExitCode, *, as_json: bool) -> int:
    if as_json:
        output.json_line({"error": kind, "message": message})
    output.note(f"plan: {message}")
    return code
