"""A hand-written Prefect flow: tasks with stored results, `pause_flow_run` with input, and a retry of the flow run after a crash.

As the pages "Caching", "Interactive workflows" and "Detect zombie flows" of its documentation tell: an automation marks the run of a dead
process as crashed, and `prefect flow-run retry` runs it again. Both are done here with the same client.
"""

import threading
from uuid import UUID

import trials
from prefect import flow, task
from prefect.client.orchestration import get_client
from prefect.flow_engine import run_flow
from prefect.flow_runs import pause_flow_run, resume_flow_run
from prefect.input import RunInput
from prefect.runtime import flow_run
from prefect.states import Crashed, Scheduled

check, charge, tell = (task(step, persist_result=True) for step in (trials.check, trials.charge, trials.tell))


class Approval(RunInput):
    """What the person is asked."""

    is_approved: bool


@flow(persist_result=True)
def pay(order: str) -> str:
    """Check an order, ask, charge it and tell the customer."""
    trials.store("flow_run", flow_run.id)
    check(order)
    approval = pause_flow_run(wait_for_input=Approval, timeout=60, poll_interval=1)
    if not approval.is_approved:
        return "rejected"
    receipt = charge(order)
    tell(order)
    return receipt


def work(trial: trials.Trial) -> None:
    """Start the order, or resume it."""
    known = trial.folder / "flow_run"
    ended = threading.Event()
    person = threading.Thread(target=_answer, args=(trial, ended), daemon=True)
    person.start()
    try:
        if not known.exists():
            pay(trials.ORDER)
            return
        run_id = UUID(known.read_text(encoding="utf-8"))
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(run_id, Crashed(message="No heartbeat"), force=True)
            client.set_flow_run_state(run_id, Scheduled(message="Retried"), force=True)
            run = client.read_flow_run(run_id)
        run_flow(pay, flow_run=run, parameters={"order": trials.ORDER})
    finally:
        ended.set()


def _answer(trial: trials.Trial, ended: threading.Event) -> None:
    """Answer in the name of the person whenever the run pauses."""
    known = trial.folder / "flow_run"
    with get_client(sync_client=True) as client:
        while not ended.wait(0.1):
            state = client.read_flow_run(UUID(known.read_text(encoding="utf-8"))).state if known.exists() else None
            if state is not None and state.is_paused():
                trial.ask()
                resume_flow_run(UUID(known.read_text(encoding="utf-8")), run_input={"is_approved": True}, _sync=True)


if __name__ == "__main__":
    trials.serve(work)
