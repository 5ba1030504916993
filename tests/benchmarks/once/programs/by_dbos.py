"""DBOS: a workflow whose steps are recorded, `recv` for the approval, and the recovery at `launch` after a crash.

As the pages "Workflows" and "Agent with a human in the loop" of its documentation tell. The system database is SQLite, its default.
"""

import trials
from dbos import DBOS, SetWorkflowID

WAITING, APPROVAL = "waiting", "approval"


@DBOS.step()
def check(order: str) -> str:
    """Read the order."""
    return trials.check(order)


@DBOS.step()
def charge(order: str) -> str:
    """Charge the order."""
    return trials.charge(order)


@DBOS.step()
def tell(order: str) -> str:
    """Read what to tell the customer."""
    return trials.tell(order)


@DBOS.workflow()
def pay(order: str) -> str:
    """Check an order, ask, charge it and tell the customer."""
    check(order)
    DBOS.set_event(WAITING, value=True)
    if not DBOS.recv(APPROVAL, timeout_seconds=60):
        return "rejected"
    receipt = charge(order)
    tell(order)
    return receipt


def work(trial: trials.Trial) -> None:
    """Start the order, or resume it."""
    database = f"sqlite:///{trial.folder / 'dbos.db'}"
    DBOS(
        config={
            "name": "pay",
            "system_database_url": database,
            "run_admin_server": False,
            "notification_listener_polling_interval_sec": 0.02,
        }
    )
    DBOS.launch()  # it recovers the workflow, if there is one
    with SetWorkflowID(trials.ORDER):
        handle = DBOS.start_workflow(pay, trials.ORDER)
    decision = trial.folder / "approved"
    if not decision.exists() and DBOS.get_event(trials.ORDER, WAITING, timeout_seconds=60):
        trial.ask()
        DBOS.send(trials.ORDER, True, APPROVAL, idempotency_key="ana")
        decision.touch()
    handle.get_result()


if __name__ == "__main__":
    trials.serve(work)
