import asyncio
import contextlib
import logging
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plan_adapter.model.errors import ToolDefinitionError, ToolError
from plan_adapter.tools import processes
from plan_adapter.tools.processes import KEPT_CHARACTERS, LOGGED_LINES
from plan_adapter.tools.shell import bash, command_tool, run_command
from plan_adapter.tools.tool import ToolContext


class Lines(logging.Handler):
    """Collects the lines that a step logs. `wait_for_line` waits for a line that matches, and returns the groups of the match."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.more = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(record.getMessage())
        self.more.set()

    async def wait_for_line(self, pattern: str) -> tuple[str, ...]:
        while True:
            self.more.clear()
            for line in self.seen:
                if match := re.fullmatch(pattern, line):
                    return match.groups()
            await asyncio.wait_for(self.more.wait(), 60)


@pytest.fixture
async def lines(context: ToolContext) -> Any:
    lines = Lines()
    context.logger.addHandler(lines)
    yield lines
    context.logger.removeHandler(lines)


@pytest.fixture
def leftover_pids() -> Iterator[list[int]]:
    """Return a list for the ids of processes that the test leaves running. They are killed after it."""
    ids: list[int] = []
    yield ids
    for pid in ids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def is_alive(pid: int) -> bool:
    """Return whether a process runs. A zombie does not: it has ended, and waits for its parent to notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


PYTHON = sys.executable


async def test_the_result_is_exit_code_stdout_and_stderr(context: ToolContext) -> None:
    result = await run_command(["sh", "-c", "echo 出; echo err >&2; printf end"], context)
    assert result == {"exit_code": 0, "stdout": "出\nend", "stderr": "err\n"}


async def test_numbers_and_booleans_are_passed_as_arguments_and_variables(context: ToolContext, tmp_path: Path) -> None:
    argv = ["sh", "-c", 'echo "$0 $1 $2 $PORT $ON"; pwd', 1, 2.5, True]
    bound = run_command.bind({"argv": argv, "cwd": str(tmp_path), "env": {"PORT": 80, "ON": False}}, context)
    assert (await run_command.fn(**bound))["stdout"] == f"1 2.5 true 80 false\n{tmp_path}\n"


async def test_arguments_are_not_interpreted_by_a_shell(context: ToolContext) -> None:
    assert (await run_command(["echo", "$HOME; ls *"], context))["stdout"] == "$HOME; ls *\n"


async def test_stdin_is_the_given_text_or_empty(context: ToolContext) -> None:
    text = "行\n" * 100_000
    assert (await run_command(["wc", "-l"], context, stdin=text))["stdout"].strip() == "100000"  # type: ignore[union-attr]
    assert (await run_command(["cat"], context))["stdout"] == ""
    assert (await run_command(["true"], context, stdin=text))["exit_code"] == 0, "one that reads nothing blocks nobody"


async def test_a_command_does_not_inherit_the_credentials_of_prefect_and_of_the_store(
    context: ToolContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = ("PLAN_ADAPTER_DATABASE_URL", "PLAN_ADAPTER_SECRET_TOKEN")
    for name in ("PREFECT_API_KEY", "PREFECT_API_AUTH_STRING", "PREFECT_SERVER_DATABASE_PASSWORD", *ours):
        monkeypatch.setenv(name, "canary")
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:4200/api")
    printed = (await run_command(["env"], context))["stdout"]
    assert "canary" not in str(printed)
    assert "PREFECT_API_URL" in str(printed)
    assert (await bash('echo "$PREFECT_API_KEY"', context, env={"PREFECT_API_KEY": "given"}))["stdout"] == "given\n"


async def test_variables_are_added_to_the_environment(context: ToolContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT", "a")
    assert (await bash('echo "$KEPT $ADDED"', context, env={"ADDED": "b c"}))["stdout"] == "a b c\n"


async def test_a_nonzero_exit_code_fails_with_the_end_of_stderr(context: ToolContext) -> None:
    with pytest.raises(ToolError) as error:
        await run_command(["sh", "-c", "echo out; seq 1000 >&2; echo 坏了 >&2; exit 3"], context)
    assert str(error.value).startswith("`sh` ended with exit code 3: ")
    assert str(error.value).endswith("999\n1000\n坏了")
    assert len(str(error.value)) < 1100


async def test_the_error_shows_the_end_of_stdout_if_stderr_is_empty(context: ToolContext) -> None:
    with pytest.raises(ToolError, match="`sh` ended with exit code 1; its last output: 2 tests failed"):
        await run_command(["sh", "-c", "echo 2 tests failed; exit 1"], context)


async def test_a_command_killed_by_a_signal_fails(context: ToolContext) -> None:
    with pytest.raises(ToolError, match="`sh` was ended by SIGKILL"):
        await run_command(["sh", "-c", "kill -9 $$"], context)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"argv": ["no-such-command", "secret"]}, "`no-such-command` cannot be started: no command of this name is found"),
        ({"argv": ["true"], "cwd": "/no/such/folder"}, "there is no folder '/no/such/folder' .cwd"),
        ({"argv": ["/etc/passwd"]}, "cannot be started: Permission denied"),
        ({"argv": ["/etc"]}, "cannot be started: Permission denied"),
        ({"argv": ["echo", "a\0b"]}, "cannot be started: embedded null byte"),
        ({"argv": ["echo", "x" * 200_000]}, "cannot be started: Argument list too long"),
        ({"argv": ["true"], "env": {"A=B": "c"}}, "cannot be started: illegal environment variable name"),
    ],
)
async def test_a_command_that_cannot_start_fails_with_the_cause(context: ToolContext, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ToolError, match=message) as error:
        await run_command(context=context, **parameters)
    assert "secret" not in str(error.value)


async def test_lines_are_logged_while_the_command_runs(context: ToolContext, lines: Lines, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    script = 'echo first; echo 二 >&2; cat "$GATE"; printf "10%%\\r100%%\\nno newline"'
    running = asyncio.ensure_future(bash(script, context, env={"GATE": str(gate)}))
    await lines.wait_for_line("first")
    await lines.wait_for_line("二")
    assert not running.done()
    gate.open("w").close()
    await running
    assert lines.seen[2:] == ["100%", "no newline"]


async def test_characters_that_arrive_in_pieces_are_decoded(context: ToolContext, lines: Lines) -> None:
    code = "import os,time; b='长\\n'.encode(); [(os.write(1, b[i:i+1]), time.sleep(0.02)) for i in range(4)]; os.write(1, b'\\xff\\0')"
    result = await run_command([PYTHON, "-c", code], context)
    assert result["stdout"] == "长\n\ufffd\ufffd"
    assert lines.seen == ["长", "\ufffd\ufffd"]


async def test_the_beginning_and_the_end_of_a_long_output_are_kept(context: ToolContext, lines: Lines) -> None:
    result = await run_command([PYTHON, "-c", "print('头' + '中' * 3_000_000 + '尾', end='')"], context)
    stdout = result["stdout"]
    assert isinstance(stdout, str)
    beginning, note, end = stdout.split("\n")
    assert beginning == "头" + "中" * (KEPT_CHARACTERS - 1)
    assert note == f"… {3_000_002 - 2 * KEPT_CHARACTERS} characters left out …"
    assert end == "中" * (KEPT_CHARACTERS - 1) + "尾"
    assert max(map(len, lines.seen)) <= processes.LINE_CHARACTERS


async def test_an_output_that_just_fits_is_not_truncated(context: ToolContext) -> None:
    result = await run_command([PYTHON, "-c", f"print('x' * {2 * KEPT_CHARACTERS}, end='')"], context)
    assert result["stdout"] == "x" * (2 * KEPT_CHARACTERS)


@pytest.mark.thorough
async def test_long_output_does_not_flood_the_log(context: ToolContext, lines: Lines) -> None:
    await run_command(["seq", str(LOGGED_LINES * 3)], context)
    assert len(lines.seen) == LOGGED_LINES + 1
    assert lines.seen[-1] == f"more than {LOGGED_LINES} lines of output: the rest is not logged"


async def test_cancelling_a_command_ends_all_processes_that_it_started(context: ToolContext, lines: Lines) -> None:
    script = "trap '' TERM; sh -c \"trap '' TERM; sleep 1000 & echo grand \\$!; wait\" & echo child $!; echo own $$; wait"
    running = asyncio.ensure_future(bash(script, context))
    pids = [int((await lines.wait_for_line(f"{name} (\\d+)"))[0]) for name in ("own", "child", "grand")]
    assert all(map(is_alive, pids))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not any(map(is_alive, pids))


async def test_a_cancelled_command_can_clean_up_first(context: ToolContext, lines: Lines, tmp_path: Path) -> None:
    running = asyncio.ensure_future(bash(f"trap 'echo cleaned > {tmp_path}/log; exit' TERM; echo ready; sleep 1000 & wait", context))
    await lines.wait_for_line("ready")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (tmp_path / "log").read_text() == "cleaned\n"


async def test_a_second_cancellation_skips_the_grace_period(context: ToolContext, lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "TERM_SECONDS", 3600)
    running = asyncio.ensure_future(bash("trap 'echo refused' TERM; echo own $$; while true; do sleep 0.05; done", context))
    pid = int((await lines.wait_for_line(r"own (\d+)"))[0])
    running.cancel()
    await lines.wait_for_line("refused")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    while is_alive(pid):
        await asyncio.sleep(0.01)


async def test_an_orphan_that_holds_the_pipes_open_does_not_block_the_step(context: ToolContext, leftover_pids: list[int]) -> None:
    result = await bash("setsid sh -c 'echo $$; exec sleep 1000' & sleep 0.2; echo started", context)
    pid, started = str(result["stdout"]).split()
    leftover_pids.append(int(pid))
    assert started == "started"
    assert is_alive(leftover_pids[0])


@pytest.mark.thorough
async def test_an_orphan_that_fills_the_pipe_does_not_block_the_step(context: ToolContext, lines: Lines, leftover_pids: list[int]) -> None:
    await bash("setsid yes >&2 & echo orphan $!", context)
    leftover_pids.append(int((await lines.wait_for_line(r"orphan (\d+)"))[0]))


async def test_all_output_of_an_ended_command_is_read(context: ToolContext) -> None:
    # The orphan keeps the pipe open, so the end of the pipe does not mark the end of the output.
    result = await bash("(setsid sleep 3 &) ; head -c 60000 /dev/zero | tr '\\0' x", context)
    assert len(str(result["stdout"])) > 2 * KEPT_CHARACTERS


async def test_a_script_stops_at_its_first_failure_even_in_a_pipeline(context: ToolContext) -> None:
    with pytest.raises(ToolError, match="`bash` ended with exit code 1; its last output: one"):
        await bash("echo one\nfalse\necho two", context)
    with pytest.raises(ToolError, match="exit code 4"):
        await bash("(exit 4) | cat", context)
    assert (await bash("false || echo three", context))["stdout"] == "three\n"


def test_the_script_must_be_literal() -> None:
    assert bash.literal_parameters == {"command"}


async def test_a_command_tool_runs_its_fixed_command(context: ToolContext, tmp_path: Path) -> None:
    where = command_tool("where", ["sh", "-c", "pwd; echo $A"], effect="read", cwd=str(tmp_path), env={"A": 1})
    assert (where.name, where.effect, where.parameters_schema["properties"]) == ("where", "read", {})
    assert (await where.fn(**where.bind({}, context)))["stdout"] == f"{tmp_path}\n1\n"
    assert command_tool("s", ["git", "status"]).description == "Run `git status`."
    assert command_tool("s", ["git", "status"]).effect == "write"


@pytest.mark.parametrize("argv", ["git status", []])
def test_a_command_tool_needs_a_list_of_arguments(argv: Any) -> None:
    with pytest.raises(ToolDefinitionError, match="must be a list of words"):
        command_tool("s", argv)


def test_commands_work_in_an_event_loop_of_another_thread(context: ToolContext) -> None:
    import threading

    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(asyncio.run(run_command.fn(["echo", "hi"], context))))
    thread.start()
    thread.join()
    assert results == [{"exit_code": 0, "stdout": "hi\n", "stderr": ""}]


async def test_no_file_descriptor_is_left_open(context: ToolContext) -> None:
    await run_command(["true"], context)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        await run_command(["true"], context, stdin="x")
    assert len(list(Path("/proc/self/fd").iterdir())) == before
