"""`ssh`: a command or a script on a host, which continues without its connection and is found again by its record there."""

import shlex
from typing import Annotated, TypeAlias

from pydantic import Field

from plan_adapter.model.errors import ToolError
from plan_adapter.tools import processes
from plan_adapter.tools.probing import Done, Failed, NotDone, ProbeAnswer, Simulation
from plan_adapter.tools.remote_calls import RemoteCall, check_host
from plan_adapter.tools.remote_programs import RemoteCommand
from plan_adapter.tools.shell import Argument, CommandResult, require_success, simulation_of, text_of, texts_of
from plan_adapter.tools.ssh_connection import Port, Target, refuse_secrets
from plan_adapter.tools.tool import ToolContext, tool

Argv: TypeAlias = Annotated[list[Argument], Field(min_length=1)] | None


class RemoteResult(CommandResult):
    """What a command on a host leaves."""

    host: str


def simulate_ssh(
    host: str,
    argv: Argv = None,
    script: str | None = None,
    user: str | None = None,
    port: Port = None,
    jump: str | None = None,
    env: dict[str, Argument] | None = None,
    cwd: str | None = None,
) -> Simulation:
    """Show the command that `ssh` would run, and how it would connect."""
    words = _words(argv, script)
    connection = shlex.join(Target(host, user, port, jump).argv())
    return simulation_of(f"{connection}\n{script if words is None else shlex.join(words)}", cwd, env)


async def find_call(
    host: str,
    context: ToolContext,
    argv: Argv = None,
    user: str | None = None,
    port: Port = None,
    jump: str | None = None,
) -> ProbeAnswer:
    """Find out on the host how a call ended. Wait for a command that still runs."""
    target = Target(host, user, port, jump)
    result = await RemoteCall(target, context).follow(deadline=context.deadline)
    if result is None:
        return NotDone(f"it was not started on {host}, and no longer can be")
    try:
        return Done(_result(target, argv, result), note=f"recorded on {host}")
    except ToolError as error:
        return Failed(str(error), note=f"recorded on {host}")


@tool(
    effect="write",
    literal_parameters=("script",),
    exactly_one=("argv", "script"),
    public_parameters=("argv", "host", "user", "jump"),
    probe=find_call,
    simulate=simulate_ssh,
    preflight=check_host,
)
async def ssh(
    host: str,
    context: ToolContext,
    argv: Argv = None,
    script: str | None = None,
    user: str | None = None,
    port: Port = None,
    jump: str | None = None,
    env: dict[str, Argument] | None = None,
    cwd: str | None = None,
    stdin: str | None = None,
) -> RemoteResult:
    """Run a command or a script on a host, through this machine's OpenSSH. The result is {host, exit_code, stdout, stderr}.

    Give `argv` or `script`. It fails like run_command, and its output is logged and cut likewise. A lost connection or a killed run does
    not end it: the host records its output and its exit code, and a resume reads them there or waits for them. A timeout or a cancellation
    ends it with all its processes. Nothing is asked: the host has to be in known_hosts, and accept a key of this account.

    Args:
        host: A host name, an address, or a name in the SSH config.
        argv: The command and its arguments. No shell interprets them. They show in the process list of the host, so secrets are refused.
        script: A script for `sh -e`: the first command that fails ends it. The plan fixes its text, so pass values through `env`.
        user: The account on the host.
        port: The port of its SSH server.
        jump: The host to connect through, as for `ssh -J`.
        env: Variables to add to the environment. They show in no process list.
        cwd: The folder to run it in. A relative one is in the home folder of the account.
        stdin: The text that it reads. Nothing by default.
    """
    target, words = Target(host, user, port, jump), _words(argv, script)
    refuse_secrets(words or (), context)
    command = RemoteCommand(argv=words, script=script, env=texts_of(env), cwd=cwd, stdin=stdin)
    return _result(target, argv, await RemoteCall(target, context).run(command))


def _words(argv: Argv, script: str | None) -> list[str] | None:
    """Return `argv` as texts, or None for a script. Raises ToolError unless exactly one of them is given."""
    if (argv is None) == (script is None):
        raise ToolError("give either `argv`, a command with its arguments, or `script`, a text for `sh`")
    return None if argv is None else [text_of(word) for word in argv]


def _result(target: Target, argv: Argv, result: processes.CommandResult) -> RemoteResult:
    """Return the result of a command. Raises ToolError if it failed."""
    require_success(f"{'the script' if argv is None else f'`{text_of(argv[0])}`'} on {target.host}", result)
    return {"host": target.host, "exit_code": 0, "stdout": result.stdout, "stderr": result.stderr}
