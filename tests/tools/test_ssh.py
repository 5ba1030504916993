"""Tests of `ssh` with a real server: exact text, failed connections, secrets, and commands whose connection or run was lost."""

import asyncio
import getpass
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plan_adapter import PlanStore, ToolRegistry
from plan_adapter.execution.redactor import Redactor
from plan_adapter.loading import load_plan
from plan_adapter.model.errors import ToolError, UnknownOutcomeError
from plan_adapter.model.status import Outcome, PlanStatus
from plan_adapter.plans import find_problems
from plan_adapter.runs import aresume_run, arun_plan
from plan_adapter.tools import Done, Failed, NotDone, ToolContext
from plan_adapter.tools.remote_programs import (
    OUTPUT_DAYS,
    RECORD_DAYS,
    RemoteCommand,
    ask_program,
    end_program,
    prepare_program,
    read_program,
    run_program,
)
from plan_adapter.tools.shell import run_command
from plan_adapter.tools.ssh import find_call, simulate_ssh, ssh
from tests.guide import GUIDE
from tests.processes import Program
from tests.ssh import HOST, NASTY, SHELLS, SshServer
from tests.tools.test_shell import Lines, is_alive

WAITS = 'echo $$ >"$FOLDER/begun"; while [ ! -e "$FOLDER/release" ]; do sleep 0.02; done'
"""A script that names its process, and ends once it is released."""


@pytest.fixture
def context(context: ToolContext, request: pytest.FixtureRequest) -> ToolContext:
    """Return a context whose key no other test uses, because all share the records of one host."""
    return replace(context, idempotency_key=f"{abs(hash(request.node.nodeid)):x}")


@pytest.fixture
def leftover_pids() -> Iterator[list[int]]:
    """Return a list for the ids of processes that the test leaves running. They are killed after it."""
    ids: list[int] = []
    yield ids
    for pid in ids:
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def lines(context: ToolContext) -> Iterator[Lines]:
    lines = Lines()
    context.logger.addHandler(lines)
    yield lines
    context.logger.removeHandler(lines)


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


async def begun(folder: Path) -> int:
    """Return the process of WAITS once it runs."""
    await until(lambda: (folder / "begun").exists() and (folder / "begun").read_text())
    return int((folder / "begun").read_text())


def waits(folder: Path, then: str = "") -> dict[str, Any]:
    """Return the parameters of a call that waits until `release` in `folder` exists."""
    return {"host": HOST, "script": f"{WAITS}; {then}", "env": {"FOLDER": str(folder)}}


def call_folder(server: SshServer, context: ToolContext) -> Path:
    return server.calls / f"{context.idempotency_key}-{context.attempt}"


# Text and results


async def test_every_text_arrives_exactly(server: SshServer, context: ToolContext, tmp_path: Path) -> None:
    folder = tmp_path / "a folder's 名"
    folder.mkdir()
    shown = """for text; do printf '<%s>' "$text"; done; printf '[%s]' "$V" "$(pwd)"; cat"""
    text = "".join(NASTY)
    argv = ["sh", "-c", shown, "sh", *NASTY, 80, 2.5, True]
    result = await ssh(HOST, context, argv=argv, env={"V": text}, cwd=str(folder), stdin=text)
    expected = "".join(f"<{part}>" for part in [*NASTY, "80", "2.5", "true"]) + f"[{text}][{folder}]{text}"
    assert result == {"host": HOST, "exit_code": 0, "stdout": expected, "stderr": ""}
    script = f"printf '[%s]' \"$V\" '{text.replace(chr(39), '')}'\nread -r line\necho \"$line\" >&2"
    result = await ssh(HOST, replace(context, attempt=2), script=script, env={"V": text}, stdin="行\nrest")
    assert (result["stdout"], result["stderr"]) == (f"[{text}][{text.replace(chr(39), '')}]", "行\n")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ({"script": "echo 坏了 >&2\nexit 3"}, "the script on web-1 ended with exit code 3: 坏了"),
        ({"script": "false\necho no"}, "the script on web-1 ended with exit code 1"),
        ({"argv": ["sh", "-c", "echo out; exit 255"]}, "`sh` on web-1 ended with exit code 255; its last output: out"),
        ({"argv": ["no-such-command"]}, "`no-such-command` on web-1 ended with exit code 127: .*not found"),
        ({"argv": ["true"], "cwd": "/no/folder"}, "`true` on web-1 ended with exit code 125: .*/no/folder"),
    ],
    ids=["script", "first", "255", "no-command", "no-folder"],
)
async def test_a_command_that_fails_fails_the_step_with_its_exit_code(
    command: dict[str, Any], message: str, server: SshServer, context: ToolContext
) -> None:
    with pytest.raises(ToolError, match=f"^{message}") as error:
        await ssh(HOST, context, **command)
    assert not isinstance(error.value, UnknownOutcomeError)
    assert (call_folder(server, context) / "exit").read_text().strip() in str(error.value)


async def test_output_is_logged_while_it_runs_and_kept_on_the_host(
    server: SshServer, context: ToolContext, lines: Lines, tmp_path: Path
) -> None:
    script = f"echo first; echo 二 >&2; {WAITS}; echo last"
    running = asyncio.ensure_future(ssh(HOST, context, script=script, env={"FOLDER": str(tmp_path)}))
    await lines.wait_for_line("first")
    await lines.wait_for_line("二")
    assert not running.done()
    (tmp_path / "release").touch()
    assert (await running)["stdout"] == "first\nlast\n"
    folder = call_folder(server, context)
    assert ((folder / "out").read_text(), (folder / "err").read_text()) == ("first\nlast\n", "二\n")
    assert {file.stat().st_mode & 0o077 for file in [folder, *folder.iterdir()]} == {0}


@pytest.mark.thorough  # 8 s
async def test_long_output_is_cut_as_that_of_a_local_command_also_when_it_is_read_again(server: SshServer, context: ToolContext) -> None:
    here = await run_command(["seq", "4000"], context)
    there = await ssh(HOST, context, argv=["seq", "4000"])
    found = await find_call(HOST, context, ["seq", "4000"])
    assert there["stdout"] == here["stdout"]
    assert found == Done(there, note=f"recorded on {HOST}")


async def test_what_a_command_leaves_in_the_background_does_not_block_the_step(
    server: SshServer, context: ToolContext, leftover_pids: list[int]
) -> None:
    result = await ssh(HOST, context, script="sleep 1000 & echo $!")
    leftover_pids.append(pid := int(result["stdout"]))
    assert is_alive(pid)


async def test_user_port_and_jump_host_are_used(server: SshServer, context: ToolContext) -> None:
    before = server.connections
    result = await ssh("127.0.0.1", context, argv=["true"], user=getpass.getuser(), port=server.port, jump=HOST)
    assert (result["host"], server.connections - before) == ("127.0.0.1", 4)


# What is refused before anything is sent


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({}, "give either `argv`"),
        ({"argv": ["true"], "script": "true"}, "give either `argv`"),
        ({"host": "-oProxyCommand=id", "argv": ["true"]}, "'-oProxyCommand=id' cannot be the host"),
        ({"host": "", "argv": ["true"]}, "'' cannot be the host"),
        ({"user": "a b", "argv": ["true"]}, "'a b' cannot be the user"),
        ({"jump": "a\nb", "argv": ["true"]}, "cannot be the jump"),
        ({"argv": ["a\0b"]}, "a NUL character"),
        ({"argv": ["true"], "env": {"A B": "c"}}, "'A B' cannot be the name of a variable"),
    ],
)
async def test_what_cannot_be_sent_is_refused_with_one_clear_error(
    parameters: dict[str, Any], message: str, server: SshServer, context: ToolContext
) -> None:
    before = server.connections
    with pytest.raises(ToolError, match=message):
        await ssh(**{"host": HOST, "context": context, **parameters})
    assert server.connections == before


def test_a_dry_run_shows_the_connection_and_the_command(server: SshServer) -> None:
    shown = simulate_ssh(HOST, script="echo $A\n", user="deploy", port=2222, jump="gate", env={"B": 1, "A": 2}, cwd="app").shows
    assert shown == f"ssh -F {server.config} -l deploy -p 2222 -J gate -- web-1\necho $A\nin app\nwith A, B"
    assert simulate_ssh(HOST, ["echo", "a b"]).shows.endswith("-- web-1\necho 'a b'")


# Connections that fail before anything is started


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"known": "no_hosts"}, "the host key of web-1 is not in known_hosts: `ssh-keyscan web-1 >> ~/.ssh/known_hosts`"),
        ({"known": "changed_hosts"}, "the host key of web-1 has changed. .*`ssh-keygen -R web-1` removes the old one"),
        ({"key": "other_key"}, "web-1 accepts no key of this account: .*Permission denied"),
        ({"port": 1}, "no connection to web-1: .*Connection refused"),
    ],
    ids=["unknown", "changed", "key", "closed"],
)
async def test_a_failed_connection_says_what_to_do_and_starts_nothing(
    changed: dict[str, Any], message: str, server: SshServer, context: ToolContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_SSH_CONFIG", str(server.write_config("changed", **changed)))
    with pytest.raises(ToolError, match=message) as error:
        await ssh(HOST, context, argv=["true"])
    assert not isinstance(error.value, UnknownOutcomeError)
    assert not call_folder(server, context).exists()


# Secrets


async def test_secrets_are_in_no_process_list_of_either_side(server: SshServer, context: ToolContext, tmp_path: Path) -> None:
    secret = "s3cret-of-the-test"
    redactor = Redactor()
    redactor.add(secret)
    context = replace(context, redaction=redactor)
    with pytest.raises(ToolError, match="a command gets one with env or stdin"):
        await ssh(HOST, context, argv=["echo", f"--token={secret}"])
    script = f'{WAITS}; echo "$TOKEN"; cat'
    running = asyncio.ensure_future(
        ssh(HOST, context, script=script, env={"TOKEN": secret, "FOLDER": str(tmp_path)}, stdin=f"with {secret}")
    )
    await begun(tmp_path)
    shown = b"".join(_read(file) for file in Path("/proc").glob("[0-9]*/cmdline"))
    assert (str(call_folder(server, context)).encode() in shown, secret.encode() in shown) == (True, False)
    (tmp_path / "release").touch()
    assert (await running)["stdout"] == "***\nwith ***"
    assert (await find_call(HOST, context)) == Done(running.result(), note=f"recorded on {HOST}")


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:  # it has ended
        return b""


# Lost connections


async def test_a_lost_connection_ends_nothing_and_the_result_is_read_from_the_record(
    server: SshServer, context: ToolContext, lines: Lines, tmp_path: Path
) -> None:
    running = asyncio.ensure_future(ssh(context=context, **waits(tmp_path, "echo done; echo 完 >&2")))
    pid = await begun(tmp_path)
    server.end_sessions()
    await lines.wait_for_line(r"the command still runs on web-1 \(process \d+, for \d+ s\); waiting for its end")
    assert is_alive(pid)
    (tmp_path / "release").touch()
    assert await running == {"host": HOST, "exit_code": 0, "stdout": "done\n", "stderr": "完\n"}


@pytest.mark.thorough  # 6 s
async def test_a_connection_that_is_lost_while_a_host_is_asked_is_made_again(
    server: SshServer, context: ToolContext, lines: Lines, tmp_path: Path
) -> None:
    running = asyncio.ensure_future(ssh(context=context, **waits(tmp_path, "echo done")))
    await begun(tmp_path)
    server.end_sessions()
    await lines.wait_for_line(r"the command still runs on web-1 \(process \d+, for \d+ s\); waiting for its end")
    before = server.connections
    await until(lambda: server.connections > before)
    server.end_sessions()
    (tmp_path / "release").touch()
    assert (await running)["stdout"] == "done\n"


async def test_a_host_that_cannot_be_asked_leaves_the_outcome_unknown(
    server: SshServer, context: ToolContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = asyncio.ensure_future(ssh(context=context, **waits(tmp_path)))
    await begun(tmp_path)
    monkeypatch.setenv("PLAN_ADAPTER_SSH_CONFIG", str(server.write_config("closed", port=1)))
    server.end_sessions()
    with pytest.raises(UnknownOutcomeError, match=r"how the command ended is not known: no connection to web-1: .*Connection refused"):
        await running
    (tmp_path / "release").touch()


async def test_a_killed_command_group_leaves_the_outcome_unknown(server: SshServer, context: ToolContext, tmp_path: Path) -> None:
    running = asyncio.ensure_future(ssh(context=context, **waits(tmp_path)))
    os.killpg(os.getpgid(await begun(tmp_path)), signal.SIGKILL)
    with pytest.raises(UnknownOutcomeError, match=r"process \d+ on web-1 has ended, and left no exit code"):
        await running


async def test_a_cancellation_ends_every_process_on_the_host_and_the_record_says_how(
    server: SshServer, context: ToolContext, lines: Lines
) -> None:
    script = "trap '' TERM; sh -c \"trap '' TERM; sleep 1000 & echo grand \\$!; wait\" & echo own $$; wait"
    running = asyncio.ensure_future(ssh(HOST, context, argv=["sh", "-c", script]))
    pids = [int((await lines.wait_for_line(f"{name} (\\d+)"))[0]) for name in ("own", "grand")]
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not any(map(is_alive, pids))
    found = await find_call(HOST, context, ["sh"])
    assert isinstance(found, Failed)
    assert found.error.startswith("`sh` on web-1 ended with exit code 137")


# The probe


async def test_a_call_that_has_not_begun_can_no_longer_begin_once_the_probe_was_asked(server: SshServer, context: ToolContext) -> None:
    assert await find_call(HOST, context) == NotDone("it was not started on web-1, and no longer can be")
    with pytest.raises(ToolError, match="nothing was started on web-1") as error:
        await ssh(HOST, context, argv=["true"])
    assert not isinstance(error.value, UnknownOutcomeError)
    assert await find_call(HOST, context) == NotDone("it was not started on web-1, and no longer can be")
    assert (await ssh(HOST, replace(context, attempt=2), argv=["true"]))["exit_code"] == 0


async def test_the_probe_says_that_a_command_still_runs_when_its_time_is_up(
    server: SshServer, context: ToolContext, tmp_path: Path
) -> None:
    running = asyncio.ensure_future(ssh(context=context, **waits(tmp_path)))
    await begun(tmp_path)
    with pytest.raises(UnknownOutcomeError, match=r"the command still runs on web-1 \(process \d+, for \d+ s\)"):
        await find_call(HOST, replace(context, deadline=time.monotonic()))
    (tmp_path / "release").touch()
    await running


@pytest.mark.parametrize(
    ("parameters", "at"),
    [
        ("{host: web-1}", "steps[0].parameters"),
        ("{host: '${{ inputs.host }}', argv: [ls, '${{ inputs.host }}'], script: ls}", "steps[0].parameters.script"),
        ("{host: web-1, argv: '${{ inputs.argv }}', script: ls}", None),  # may be null, so the call decides
    ],
)
def test_neither_or_both_of_argv_and_script_is_a_problem_of_the_plan(parameters: str, at: str | None) -> None:
    inputs = "inputs: {host: {type: string, default: web-1}, argv: {type: array, default: [ls]}}"
    plan = load_plan(
        f"name: look\ndescription: Look\n{inputs}\nsteps:\n  - {{id: look, description: Look, ssh: {parameters}, timeout: 5s}}\n"
    )
    problems = [problem for problem in find_problems(plan, ToolRegistry.with_builtins()) if problem.severity == "error"]
    assert [(problem.code, problem.at, problem.line) for problem in problems] == ([] if at is None else [("bad-parameters", at, 5)])


# Killed runs

RUN = """\
import sys
from plan_adapter import ExecutionPlan, ToolRegistry, run_plan

folder, script, timeout = sys.argv[1:]
plan = ExecutionPlan(description="Append a line")
parameters = {"host": "web-1", "script": script, "env": {"FOLDER": folder}}
plan.add_step("ssh", "Append it", parameters, id="append", timeout_ms=int(timeout))
plan.options.require_approval = False
run_plan(plan, tools=ToolRegistry.with_builtins(), offline=True)
"""


@pytest.mark.parametrize(
    ("code", "ends", "status"),
    [(0, "before", PlanStatus.COMPLETED), (3, "before", PlanStatus.FAILED), (0, "during", PlanStatus.COMPLETED)],
    ids=["done", "failed", "still-running"],
)
async def test_a_resume_finds_the_command_of_a_killed_run_and_repeats_nothing(
    code: int, ends: str, status: PlanStatus, server: SshServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_HOME", str(tmp_path / "home"))
    known = set(server.calls.glob("*"))
    process = Program(RUN, tmp_path, f'echo line >>"$FOLDER/effect"; echo 行; {WAITS}; exit {code}', "600000")
    pid = await begun(tmp_path)
    process.kill()
    process.wait()
    async with PlanStore() as store:
        run = (await store.runs())[0]
        if ends == "before":
            (tmp_path / "release").touch()
            await until(lambda: not is_alive(pid))
            resumed = await aresume_run(run.id, tools=ToolRegistry.with_builtins(), store=store, offline=True)
        else:
            before = server.connections
            resuming = asyncio.ensure_future(aresume_run(run.id, tools=ToolRegistry.with_builtins(), store=store, offline=True))
            await until(lambda: server.connections > before)
            assert is_alive(pid)
            (tmp_path / "release").touch()
            resumed = await resuming
        [receipt] = await store.receipts(run.id)
        assert (resumed.status, receipt.known_by, receipt.note) == (status, "probe", "recorded on web-1")
        assert receipt.error == (f"the script on web-1 ended with exit code {code}; its last output: 行" if code else None)
        assert code or receipt.result == {"host": HOST, "exit_code": 0, "stdout": "行\n", "stderr": ""}
    assert (tmp_path / "effect").read_text() == "line\n"
    assert len(set(server.calls.glob("*")) - known) == 1


@pytest.mark.thorough
async def test_a_timeout_ends_the_command_on_the_host_and_fails_the_step(
    server: SshServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_HOME", str(tmp_path / "home"))
    program = Program(RUN, tmp_path, WAITS, "8000")
    await asyncio.to_thread(program.wait)
    pid = await begun(tmp_path)
    assert not is_alive(pid)
    async with PlanStore() as store:
        [receipt] = await store.receipts((await store.runs())[0].id)
    assert (receipt.outcome, receipt.known_by, receipt.error) == (Outcome.FAILED, "probe", "the script on web-1 ended with exit code 143")


async def test_the_plan_of_the_guide_works(server: SshServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_HOME", str(tmp_path / "home"))
    (text,) = re.findall(r"```yaml ssh\n(.*?)```", (GUIDE / "tools.md").read_text(encoding="utf-8"), re.DOTALL)
    plan = load_plan(text.replace("/srv/web", str(tmp_path)))
    plan.options.require_approval = False
    run = await arun_plan(plan, inputs={"host": HOST, "release": "1.5"}, tools=ToolRegistry.with_builtins(), offline=True)
    assert (run.status, run.step("publish").result) == (
        PlanStatus.COMPLETED,
        {"host": HOST, "exit_code": 0, "stdout": "1.5\n", "stderr": ""},
    )


# Other shells, without a connection


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: Path(shell[0]).name)
def test_the_programs_work_in_every_shell(shell: list[str], tmp_path: Path) -> None:
    def run(program: str) -> "subprocess.CompletedProcess[str]":
        environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
        return subprocess.run(shell, input=program, env=environment, capture_output=True, text=True, start_new_session=True, check=False)

    assert run(prepare_program()).stdout == "plan_adapter: ready\n"
    text = "".join(NASTY)
    shown = """printf '<%s>' "$@" "$V"; cat; echo error >&2; exit 7"""
    command = RemoteCommand(["sh", "-c", shown, "sh", *NASTY], None, {"V": text}, None, text)
    ended = run(run_program("call-1", command))
    assert (ended.returncode, ended.stderr) == (7, "error\n")
    assert ended.stdout == "".join(f"<{part}>" for part in [*NASTY, text]) + text
    folder = tmp_path / "plan_adapter/calls/call-1"
    assert ((folder / "exit").read_text(), (folder / "out").read_text(), (folder / "err").read_text()) == ("7\n", ended.stdout, "error\n")
    assert run(run_program("call-1", command)).returncode == 255
    half = run_program("call-2", command)
    assert run(half[: len(half) - 20]).stdout == ""
    assert not (folder.parent / "call-2").exists()


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: Path(shell[0]).name)
def test_a_command_is_asked_for_and_ended_in_every_shell(shell: list[str], tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}

    def start(program: str) -> "subprocess.Popen[str]":
        pipe = subprocess.PIPE
        started = subprocess.Popen(shell, env=environment, stdin=pipe, stdout=pipe, text=True, start_new_session=True)
        assert started.stdin is not None
        started.stdin.write(program)
        started.stdin.close()
        return started

    def answer(program: str) -> str:
        with start(program) as started:
            assert started.stdout is not None
            return started.stdout.read().removeprefix("plan_adapter: ").strip()

    with start(run_program("call-1", RemoteCommand(None, "trap '' TERM; echo $$; while :; do sleep 0.1; done", {}, None, None))) as running:
        assert running.stdout is not None
        pid = int(running.stdout.readline())
        assert re.fullmatch(rf"running {running.pid} \d+", answer(ask_program("call-1", seconds=0)))
        assert answer(end_program("call-1")) == ""
        assert not is_alive(pid)
    assert (running.returncode, answer(ask_program("call-1", seconds=0))) == (137, "ended 137")
    assert answer(read_program("call-1")) == str(pid)
    assert [answer(ask_program("call-2", seconds=0)) for _ in range(2)] == ["never", "never"]


def test_a_host_keeps_output_for_a_month_and_the_end_of_a_call_for_longer(tmp_path: Path) -> None:
    calls = tmp_path / "plan_adapter/calls"
    for name, days in (("new", 1), ("old", OUTPUT_DAYS + 2), ("oldest", RECORD_DAYS + 2)):
        (calls / name).mkdir(parents=True)
        for file in ("pid", "exit", "out", "err", "script"):
            (calls / name / file).touch()
        for file in (*(calls / name).iterdir(), calls / name):
            os.utime(file, (then := time.time() - days * 86_400, then))
    subprocess.run(["sh"], input=prepare_program(), env={**os.environ, "XDG_STATE_HOME": str(tmp_path)}, text=True, check=True)
    assert sorted(str(file.relative_to(calls)) for file in calls.glob("*/*")) == sorted(
        [*(f"new/{name}" for name in ("err", "exit", "out", "pid", "script")), "old/exit", "old/pid"]
    )
