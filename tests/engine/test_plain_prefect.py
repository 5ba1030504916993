"""What the README says about pauses of plain Prefect, without this package: which of them are passed without an answer."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import pytest
from prefect import get_client
from prefect.states import Running

from tests.engine.gates import wait_for_state

pytestmark = [pytest.mark.usefixtures("prefect_server"), pytest.mark.thorough]

ENDS = ("Completed", "Failed", "Crashed", "Cancelled")

PLAIN = """
import sys
from uuid import UUID
from prefect import flow, get_client, pause_flow_run
from prefect.flow_engine import run_flow
from prefect.input import RunInput

class Defaults(RunInput):
    approved: bool = True

class Required(RunInput):
    approved: bool

@flow(name="plain")
def plain(form: str):
    models = {"none": None, "defaults": Defaults, "required": Required}
    pause_flow_run(wait_for_input=models[form], timeout=600, poll_interval=1)
    open(sys.argv[3], "a").write("passed\\n")

with get_client(sync_client=True) as client:
    if sys.argv[2] == "new":
        found = client.create_flow_run(plain, parameters={"form": sys.argv[1]})
        print(found.id, flush=True)
    else:
        found = client.read_flow_run(UUID(sys.argv[2]))
run_flow(plain, flow_run=found, parameters={"form": sys.argv[1]}, return_type="state")
"""


@contextmanager
def started(form: str, which: str, file: Path) -> Iterator[tuple["subprocess.Popen[str]", UUID]]:
    """Run the flow as a new flow run, or as an existing one, in a process of its own."""
    command = [sys.executable, "-c", PLAIN, form, which, str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=dict(os.environ)) as process:
        try:
            assert process.stdout is not None
            yield process, UUID(process.stdout.readline().strip() if which == "new" else which)
        finally:
            process.kill()


@pytest.mark.parametrize(("form", "passes"), [("none", True), ("defaults", True), ("required", False)])
async def test_running_set_by_a_client_passes_a_pause_without_a_required_field(form: str, passes: bool, tmp_path: Path) -> None:
    with started(form, "new", tmp_path / "log") as (_, flow_run_id):
        await wait_for_state(flow_run_id, "Paused")
        async with get_client() as client:
            await client.set_flow_run_state(flow_run_id, Running(), force=True)
        state = await wait_for_state(flow_run_id, *ENDS)
    assert (state == "Completed", (tmp_path / "log").exists()) == (passes, passes)


@pytest.mark.parametrize(("form", "passes"), [("none", True), ("defaults", True), ("required", False)])
async def test_a_flow_killed_at_such_a_pause_and_run_again_passes_it(form: str, passes: bool, tmp_path: Path) -> None:
    with started(form, "new", tmp_path / "log") as (process, flow_run_id):
        await wait_for_state(flow_run_id, "Paused")
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    with started(form, str(flow_run_id), tmp_path / "log"):
        state = await wait_for_state(flow_run_id, *ENDS)
    assert (state == "Completed", (tmp_path / "log").exists()) == (passes, passes)
