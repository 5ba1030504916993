"""`plan`: its verbs. Errors become messages and exit codes here and nowhere else."""

import gc
import os
import re
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from plan_adapter.cli import output
from plan_adapter.cli.exit_codes import ExitCode, UsageError, code_of_error
from plan_adapter.cli.renamed import current_names
from plan_adapter.model.language import language_of, speaking
from plan_adapter.model.problems import did_you_mean
from plan_adapter.model.readable import without_passwords

if TYPE_CHECKING:
    from cyclopts import App, UnusedCliTokensError
    from pydantic import ValidationError


@dataclass(frozen=True, slots=True)
class Verb:
    """One word after `plan`. Its function and module have the same name, and are imported on use.

    A verb with actions has a function for each of them: `plan store upgrade` calls `store_upgrade`.
    """

    name: str
    help: str
    function: str = ""  # where the name is a Python keyword: `module:function`
    actions: tuple["Verb", ...] = ()  # the first one is the default

    @property
    def commands(self) -> tuple[str, ...]:
        """What is typed after `plan`: the verb, or the verb and one of its actions."""
        return tuple(f"{self.name} {action.name}" for action in self.actions) or (self.name,)

    def arguments_of(self, arguments: Sequence[str]) -> list[str]:
        """Return the arguments of `plan` with the default action, where they name none."""
        if self.actions and (len(arguments) == 1 or arguments[1].startswith("-")):
            return [self.name, self.actions[0].name, *arguments[1:]]
        return [*arguments]


GROUPS: dict[str, tuple[Verb, ...]] = {
    "Write": (
        Verb("init", "Write a starter plan"),
        Verb("validate", "Find every problem in a plan before it runs"),
        Verb("preview", "Show what a run would do, without running anything"),
        Verb("test", "Run the test cases of plans, with answers in place of tools and people"),
        Verb("draft", "Draft a plan with a language model, or through any chat"),
        Verb("save", "Save a plan in the store, as the next version of its name"),
    ),
    "Run": (
        Verb("run", "Run a plan"),
        Verb("replay", "Show what recorded runs would do with this version of their plan"),
        Verb("deploy", "Deploy a runbook to Prefect, with a form and a schedule"),
        Verb("serve", "Serve runbooks from this process, without a work pool"),
    ),
    "Decide": (
        Verb("gates", "List the runs and steps that wait for an answer"),
        Verb("approve", "Approve a waiting run or step"),
        Verb("answer", "Answer the question of a step"),
        Verb("reject", "Reject a waiting run or step, or ask for changes"),
        Verb("resolve", "Record the outcome of a write that was interrupted"),
        Verb("desk", "Serve a web page where approvers answer gates"),
    ),
    "Look": (
        Verb("runs", "List runs"),
        Verb("show", "Show a plan, or a run with its steps"),
        Verb("report", "Write a report of a run as one HTML file"),
        Verb("diff", "Show what differs between two versions of a plan"),
        Verb("logs", "Show what the steps of a run printed"),
        Verb("guide", "Read the handbook: `plan guide security`"),
    ),
    "Repair": (
        Verb("resume", "Resume a run. Completed steps are kept; the rest run now."),
        Verb("revise", "Replace the plan of a run with a new version"),
        Verb("cancel", "Cancel a run"),
        Verb("rollback", "Roll back what a run has done"),
        Verb("doctor", "Check this installation, its server and its store"),
    ),
}
"""The verbs of daily work, by what a person is doing."""

ADMIN_GROUPS: dict[str, tuple[Verb, ...]] = {
    "Plans": (
        Verb("promote", "Turn a good run into a runbook: what varies becomes inputs"),
        Verb("import", "Convert plans that other programs wrote", function="verbs.import_:import_plans"),
        Verb("pursue", "Pursue a goal in words: draft, approve, run, summarize"),
        Verb("graph", "Draw the steps of a plan or a run"),
        Verb("schema", "Print the JSON Schema of plans, for editors"),
        Verb("tools", "List the tools that plans can use"),
        Verb("explain", "Explain the code of a problem"),
    ),
    "Permission": (
        Verb(
            "standing",
            "Approve a plan's scheduled runs in advance",
            actions=(
                Verb("list", "List what is approved in advance"),
                Verb("add", "Approve a plan's scheduled runs"),
                Verb("revoke", "Revoke a standing approval"),
            ),
        ),
        Verb("enroll", "Set up one-time codes for an approver"),
        Verb(
            "policy",
            "Show or set the policy that applies to every plan",
            actions=(Verb("show", "Show the policy"), Verb("set", "Set its next version")),
        ),
    ),
    "Records": (
        Verb("verify", "Check that the record of a run, or the whole store, was not altered"),
        Verb("audit", "Write the pack of a period that an auditor asks for"),
        Verb("export", "Write the record of a run to a file that can be verified"),
        Verb("prune", "Delete the records of old runs"),
        Verb("erase", "Erase personal data in the record of a run"),
        Verb(
            "store",
            "Show or upgrade the database of plans and runs",
            actions=(
                Verb("status", "Show where it is and whether it can be used"),
                Verb("upgrade", "Upgrade it to this version"),
                Verb("grants", "Print the roles for PostgreSQL"),
            ),
        ),
    ),
    "Servers": (
        Verb("reconcile", "Find runs whose process died and correct their state in Prefect"),
        Verb("notify", "Notify people of gates and of runs that did not complete"),
        Verb("down", "Stop the local Prefect server"),
        Verb("mcp", "Let agents draft, check and start plans, over MCP", function="mcp:mcp"),
    ),
}
"""The other verbs. `plan admin` lists them, and `plan VERB` and `plan admin VERB` are the same."""

ADMIN = "admin"

VERBS = {verb.name: verb for verbs in (*GROUPS.values(), *ADMIN_GROUPS.values()) for verb in verbs}

OPTIONS = (
    ("--help", "Show this text; `plan VERB --help` explains a verb"),
    ("--version", "Show the version"),
    ("--debug", "Show the traceback of an unexpected error"),
    ("--install-completion", "Let your shell complete verbs and options"),
)

HELP = frozenset(("--help", "-h"))

COMPLETION = {"--install-completion", "__complete"}
"""Handled by cyclopts itself; installed completion scripts call the second."""

GARBAGE_THRESHOLDS = (50_000, 10, 10)
"""When Python collects garbage (default: 700 new objects). A command keeps most of what it imports, so early collections only cost time."""

DEBUG_HINT = "`--debug` shows the whole traceback"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: this process's) and return its exit code."""
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    debug = "--debug" in options
    if debug:
        arguments.remove("--debug")
    output.prepare_streams()
    try:
        is_for_programs = "--json" in options or options[:1] == ["mcp"]  # what they read is always in English
        with speaking("en" if is_for_programs else language_of(os.environ.get("PLAN_ADAPTER_LANGUAGE"))):
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
        return _report_error(error, as_json="--json" in options)
    except BaseException as error:
        if not _is_termination(error):
            raise
        return ExitCode.INTERRUPTED
    return code


def _is_termination(error: BaseException) -> bool:
    """Return whether Prefect's SIGTERM handler raised `error`. By then the run has reported its end."""
    exceptions = sys.modules.get("prefect.exceptions")
    return exceptions is not None and isinstance(error, exceptions.TerminationSignal)


def help_text() -> str:
    """Return the text of `plan --help`."""
    others = ", ".join(verb.name for verbs in ADMIN_GROUPS.values() for verb in verbs)
    return "\n\n".join(
        [
            "Usage: plan VERB …",
            "Check, preview, run and record execution plans as Prefect flows.",
            *_format_groups(GROUPS),
            "More verbs, which `plan admin` explains:\n" + textwrap.fill(others, 78, initial_indent="  ", subsequent_indent="  "),
            f"Options:\n{_format_columns(OPTIONS, max(len(name) for name, _ in OPTIONS))}",
            "Exit codes: 0 done, 1 a step failed, 2 usage or invalid plan, 3 rejected or expired,\n"
            "4 cancelled, 5 timed out, 6 waiting for an approval, 7 an outcome is unknown,\n"
            "8 not in that state, 9 store or server unavailable, 10 not allowed, 130 interrupted",
        ]
    )


def admin_help_text() -> str:
    """Return the text of `plan admin`."""
    return "\n\n".join(["Usage: plan admin VERB …", "`plan VERB` is the same.", *_format_groups(ADMIN_GROUPS)])


def actions_help_text(verb: Verb) -> str:
    """Return the text of `plan VERB --help` for a verb with actions."""
    rows = [(action.name, action.help + (" (the default)" if action is verb.actions[0] else "")) for action in verb.actions]
    return "\n\n".join(
        [
            f"Usage: plan {verb.name} [ACTION] …",
            f"{verb.help}.",
            f"Actions:\n{_format_columns(rows, max(len(name) for name, _ in rows))}",
            f"`plan {verb.name} {verb.actions[-1].name} --help` explains an action.",
        ]
    )


def _format_groups(groups: Mapping[str, Sequence[Verb]]) -> list[str]:
    width = max(len(name) for name in VERBS)
    return [f"{title}:\n{_format_columns([(verb.name, verb.help) for verb in verbs], width)}" for title, verbs in groups.items()]


def _format_columns(rows: Iterable[tuple[str, str]], width: int) -> str:
    return "\n".join(f"  {left:<{width}}  {right}" for left, right in rows)


def _dispatch(arguments: list[str]) -> int:
    if arguments[:1] == [ADMIN]:
        arguments = arguments[1:]
        if not arguments or arguments[0] in ("--help", "-h", "help"):
            output.line(admin_help_text())
            return ExitCode.DONE
    if not arguments or arguments[0] in ("--help", "-h", "help"):
        return _print_help(arguments[1:])
    arguments, notes = current_names(arguments)
    for note in notes:
        output.note(note)
    if arguments[0] == "--version":
        output.line(_version())
        return ExitCode.DONE
    if arguments[0] not in VERBS.keys() | COMPLETION:
        raise UsageError(f"there is no verb `{arguments[0]}`", hint=did_you_mean(arguments[0], VERBS))
    if verb := VERBS.get(arguments[0]):
        if verb.actions and len(arguments) == 2 and arguments[1] in HELP:
            output.line(actions_help_text(verb))
            return ExitCode.DONE
        arguments = verb.arguments_of(arguments)
        if verb.actions and arguments[1] not in (names := [action.name for action in verb.actions]):
            raise UsageError(f"`plan {verb.name}` has no action `{arguments[1]}`", hint=did_you_mean(arguments[1], names))
    if "-" in arguments:
        from plan_adapter.cli.sources import STDIN  # not for `plan --help`

        # `-o -` is stdout, the default.
        outputs = {index for index, pair in enumerate(pairwise(arguments)) if pair in (("-o", "-"), ("--output", "-"))}
        arguments = [argument for index, argument in enumerate(arguments) if not {index, index - 1} & outputs]
        arguments = [STDIN if argument == "-" else argument for argument in arguments]
    app = build_app()
    if not HELP.isdisjoint(arguments):
        from plan_adapter.cli.help_text import write_help  # only for the help of a verb

        write_help(app, " ".join(arguments[: 2 if VERBS[arguments[0]].actions else 1]))
    result: Any = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    return result if isinstance(result, int) else ExitCode.DONE


def _print_help(arguments: list[str]) -> int:
    if arguments and not arguments[0].startswith("-"):
        words = [word for word in arguments if not word.startswith("-")]
        return _dispatch([*words, "--help"])
    output.line(help_text())
    return ExitCode.DONE


def build_app() -> "App":
    """Return the cyclopts app with every verb. A verb is imported when it is called."""
    from cyclopts import App, Parameter  # not for `plan --help`

    app = App(
        name="plan",
        help=help_text(),
        help_format="plaintext",
        version=_version,
        default_parameter=Parameter(negative=(), show_default=False),
        suppress_keyboard_interrupt=False,
    )
    for verb in VERBS.values():
        if verb.actions:
            app.command(actions := App(name=verb.name, help=verb.help))
            for action in verb.actions:
                actions.command(f"plan_adapter.cli.verbs.{verb.name}:{verb.name}_{action.name}", name=action.name)
        else:
            app.command(f"plan_adapter.cli.{verb.function or f'verbs.{verb.name}:{verb.name}'}", name=verb.name)
    app.register_install_completion_command()  # pyright: ignore[reportUnknownMemberType]  # cyclopts leaves its **kwargs untyped
    return app


def _version() -> str:
    from importlib.metadata import version  # only for `--version`

    return f"plan {version('prefect-plan-adapter')}"


def _report_error(error: Exception, *, as_json: bool) -> int:
    # Only for a command that failed.
    import traceback

    from cyclopts import CycloptsError, UnusedCliTokensError
    from pydantic import ValidationError

    from plan_adapter.model import errors

    if isinstance(error, errors.InvalidPlanError):
        output.problems(error.problems, as_json=as_json, to_stdout=False)
        return ExitCode.USAGE
    if isinstance(error, UnusedCliTokensError):
        return _print_error("usage", *_unused_tokens_message(error), ExitCode.USAGE, as_json=as_json)
    if isinstance(error, CycloptsError):
        hint = f"see `{' '.join(('plan', *(error.command_chain or ())))} --help`"
        return _print_error("usage", f"{str(error).rstrip('.')}; {hint}", hint, ExitCode.USAGE, as_json=as_json)
    if isinstance(error, ValidationError) and error.title == "Settings":
        return _print_error("settings", _settings_message(error), "", ExitCode.USAGE, as_json=as_json)
    if isinstance(error, UsageError):
        return _print_error(error.code, str(error), error.hint, ExitCode.USAGE, as_json=as_json, earlier="usage")
    if isinstance(error, errors.PlanAdapterError):
        newer = (errors.ApprovalRequiredError, errors.ContentChangedError, errors.InvalidAnswerError, errors.NotStoredError)
        earlier = next(cls for cls in type(error).__mro__ if cls not in (*newer, errors.RunNotFoundError))
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", type(error).__name__.removesuffix("Error")).lower()
        return _print_error(name, str(error), error.hint, code_of_error(error), as_json=as_json, earlier=earlier.__name__)
    message = " ".join(traceback.format_exception_only(error)[-1].split())
    traceback_file = output.save_traceback(error)
    where = f"the traceback is in {traceback_file}, and {DEBUG_HINT}" if traceback_file is not None else DEBUG_HINT
    message = f"unexpected {without_passwords(message)}; {where}"
    return _print_error("unexpected", message, where, ExitCode.FAILED, as_json=as_json, earlier=type(error).__name__)


def _unused_tokens_message(error: "UnusedCliTokensError") -> tuple[str, str]:
    """Return which arguments a command does not take, and what to type instead."""
    verb, tokens = " ".join(("plan", *(error.command_chain or ()))), error.unused_tokens or []
    listed = ", ".join(f"`{token}`" for token in tokens)
    hint = f"write to a file with `--output {tokens[0]}`" if verb == "plan export" and len(tokens) == 1 else f"see `{verb} --help`"
    return f"`{verb}` does not take {listed}; {hint}", hint


def _settings_message(error: "ValidationError") -> str:
    """Return which environment variables are wrong and what they may be, but never their values."""
    from plan_adapter.documents.wording import demand_of  # only for a command that failed

    errors = error.errors(include_input=False, include_url=False)
    names = ("_".join(str(part) for part in detail["loc"]).upper() for detail in errors)
    return "; ".join(f"PLAN_ADAPTER_{name}: {demand_of(detail)}" for name, detail in zip(names, errors, strict=True))


def _print_error(name: str, message: str, hint: str, code: ExitCode, *, as_json: bool, earlier: str | None = None) -> int:
    """Print an error. `hint` is the end of `message`."""
    if as_json:
        output.json_error(name, message, hint, earlier=earlier or name)
    output.note(f"plan: {message}")
    return code


if __name__ == "__main__":
    sys.exit(main())
