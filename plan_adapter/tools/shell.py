"""`run_command`, `bash` and `command_tool`: a command as a step, in a process group that ends with the step."""

import shlex
import signal
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeAlias

from pydantic import Field
from typing_extensions import TypedDict

from plan_adapter.model.errors import ToolDefinitionError, ToolError
from plan_adapter.model.options import Effect
from plan_adapter.tools import processes
from plan_adapter.tools.probing import Simulation
from plan_adapter.tools.tool import Tool, ToolContext, tool

ERROR_CHARACTERS = 1_000

BASH = ("bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c")
"""A script ends at its first failing command, also in a pipeline, as in CI systems: a step must not hide a failure."""

Argument: TypeAlias = str | int | float | bool
"""An argument or the value of a variable. Numbers and booleans are converted to text, so `${{ inputs.port }}` can be used."""


class CommandResult(TypedDict):
    """What a command leaves."""

    exit_code: int
    stdout: str
    stderr: str


def simulate_command(
    argv: Annotated[list[Argument], Field(min_length=1)], cwd: str | None = None, env: dict[str, Argument] | None = None
) -> Simulation:
    """Show the command that `run_command` would run."""
    return simulation_of(shlex.join(map(text_of, argv)), cwd, env)


def simulate_script(command: str, cwd: str | None = None, env: dict[str, Argument] | None = None) -> Simulation:
    """Show the script that `bash` would run."""
    return simulation_of(command, cwd, env)


def simulation_of(command: str, cwd: str | None, env: Mapping[str, Argument] | None) -> Simulation:
    """Return a command with its folder and the names of its variables. What it would print is not known."""
    about = [f"in {cwd}"] if cwd is not None else []
    about += [f"with {', '.join(sorted(env))}"] if env else []
    return Simulation("\n".join([command.rstrip("\n"), *about]))


@tool(effect="write", simulate=simulate_command)
async def run_command(
    argv: Annotated[list[Argument], Field(min_length=1)],
    context: ToolContext,
    cwd: str | None = None,
    env: dict[str, Argument] | None = None,
    stdin: str | None = None,
) -> CommandResult:
    """Run a command without a shell. The result is {exit_code, stdout, stderr}.

    Each line of output goes to the step's log. If an output is long, the result keeps only its start and end. An exit code other than 0
    fails the step. A timeout or a cancellation also ends every process that the command started. Processes that it leaves in the
    background when it ends by itself keep running. The command inherits the environment without PLAN_ADAPTER_*, OPENAI_* and Prefect's
    credentials; all other variables, such as AWS_*, stay. Pass other credentials like this: `env: {TOKEN: "${{ secrets.token }}"}`.

    Args:
        argv: The command and its arguments.
        cwd: The folder to run it in.
        env: Variables to add to the environment.
        stdin: The text that the command reads. Nothing by default.
    """
    return await _run([text_of(argument) for argument in argv], cwd=cwd, env=env, stdin=stdin, context=context)


@tool(effect="write", literal_parameters=("command",), simulate=simulate_script)
async def bash(command: str, context: ToolContext, cwd: str | None = None, env: dict[str, Argument] | None = None) -> CommandResult:
    """Run a bash script. The result is {exit_code, stdout, stderr}.

    The script runs with `-e -o pipefail`: the first command that fails ends it and fails the step. The plan fixes its text, so pass values
    of a run through `env`. Everything else is as for run_command.

    Args:
        command: The script.
        cwd: The folder to run it in.
        env: Variables to add to the environment.
    """
    return await _run([*BASH, command], cwd=cwd, env=env, stdin=None, context=context)


def command_tool(
    name: str,
    argv: Sequence[str],
    *,
    effect: Effect = "write",
    description: str | None = None,
    cwd: str | None = None,
    env: Mapping[str, Argument] | None = None,
    permissions: Iterable[str] = (),
    probe: Callable[..., object] | None = None,
) -> Tool[[ToolContext], Coroutine[Any, Any, CommandResult]]:
    """Return a tool without parameters that runs one fixed command, with fixed `cwd` and `env`.

    It returns and fails like run_command. `probe` works as for `tool`.
    """
    if isinstance(argv, str) or not argv:
        raise ToolDefinitionError(f'the command of `{name}` must be a list of words: ["git", "status"]')
    arguments = [text_of(argument) for argument in argv]

    async def run(context: ToolContext) -> CommandResult:
        return await _run(arguments, cwd=cwd, env=env, stdin=None, context=context)

    summary = description or f"Run `{' '.join(arguments)}`."
    return Tool(run, name=name, effect=effect, description=summary, permissions=permissions, probe=probe)


async def _run(
    argv: list[str], *, cwd: str | None, env: Mapping[str, Argument] | None, stdin: str | None, context: ToolContext
) -> CommandResult:
    result = await processes.run_group(argv, cwd=cwd, env=texts_of(env), stdin=stdin, context=context)
    require_success(f"`{argv[0]}`", result)
    return {"exit_code": 0, "stdout": result.stdout, "stderr": result.stderr}


def require_success(name: str, result: processes.CommandResult) -> None:
    """Raise ToolError if the command called `name` did not end with exit code 0."""
    if result.exit_code == 0:
        return
    ending = f"ended with exit code {result.exit_code}" if result.exit_code > 0 else f"was ended by {_signal_name(-result.exit_code)}"
    # Both are redacted already: a secret cut in half could no longer be found.
    errors, printed = result.stderr.strip()[-ERROR_CHARACTERS:], result.stdout.strip()[-ERROR_CHARACTERS:]
    raise ToolError(f"{name} {ending}" + (f": {errors}" if errors else f"; its last output: {printed}" if printed else ""))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def texts_of(env: Mapping[str, Argument] | None) -> dict[str, str]:
    """Return variables with their values as text."""
    return {name: text_of(value) for name, value in (env or {}).items()}


def text_of(argument: Argument) -> str:
    """Return an argument as text."""
    return str(argument).lower() if isinstance(argument, bool) else str(argument)
