"""`plan store`."""

from importlib.resources import files
from typing import TYPE_CHECKING, Literal

from plan_adapter.cli import output
from plan_adapter.cli.exit_codes import ExitCode
from plan_adapter.cli.sources import open_store
from plan_adapter.cli.verbs.runs import check_tombstone_signatures
from plan_adapter.local.settings import Settings
from plan_adapter.model.readable import counted

if TYPE_CHECKING:
    from plan_adapter.store.store import PlanStore


async def store(action: Literal["status", "upgrade", "grants", "verify"] = "status", /, *, json: bool = False) -> int:
    """Show the database of plans and runs, verify it, or upgrade it to the schema of this version.

    A SQLite file is created and upgraded automatically; a PostgreSQL database only by `plan store upgrade`.

    Args:
        action: `status` (the default) shows where it is and whether it can be used; `upgrade` upgrades its schema; `grants` prints the SQL
            that creates the roles plan_runner, plan_operator, plan_keeper and plan_auditor on PostgreSQL, and what each may do; `verify`
            checks the records of all runs, the tombstones of those that were pruned, the policy, and the versions of saved plans, and exits
            with 1 if one was altered.
        json: Print one JSON object.
    """
    from plan_adapter.store.database.tables import REVISION  # imports SQLAlchemy

    if action == "grants":
        grants = files("plan_adapter.store.database").joinpath("grants.sql").read_text(encoding="utf-8")
        if json:
            output.json_line("grants", {"grants": grants})
        else:
            for text in grants.splitlines():
                output.line(text)
        return ExitCode.DONE
    async with open_store(Settings()) as plan_store:
        if action == "verify":
            return await _verify_store(plan_store, as_json=json)
        revision = await plan_store.upgrade() if action == "upgrade" else REVISION
        newest = await plan_store.runs(limit=1)
        names = await plan_store.names()
        location = plan_store.label
    if json:
        output.json_line(
            "store", {"store": location, "revision": revision, "plans": len(names), "newest_run": newest[0].id if newest else None}
        )
        return ExitCode.DONE
    output.line(f"{location}: " + ("upgraded to" if action == "upgrade" else "ready,") + f" revision {revision}")
    output.line(f"{len(names)} named plans; newest run: {newest[0].id if newest else 'none yet'}")
    return ExitCode.DONE


async def _verify_store(plan_store: "PlanStore", *, as_json: bool) -> int:
    """Return 0 if every record, tombstone and policy of the store is as it was written, 1 otherwise."""
    problems, page, count = list[str](), list[str](), 0
    while page := await plan_store.retention.run_ids(after=page[-1] if page else ""):
        for run_id in page:
            found = await plan_store.verify(run_id)
            problems += [] if found.ok else [f"run {run_id}: {found.problem or 'it has no audit log'}"]
        count += len(page)
    checks = check_tombstone_signatures(await plan_store.retention.signatures(), await plan_store.policy.effective(Settings()))
    problems += [check["problem"] for check in checks if check["problem"] is not None]
    for problem in (await plan_store.retention.problem(), (await plan_store.policy.history())[1], await plan_store.versions_problem()):
        problems += [] if problem is None else [problem]
    if as_json:
        output.json_line("store_verification", {"runs": count, "ok": not problems, "problems": problems})
    for problem in [] if as_json else problems:
        output.line(f"altered: {problem}")
    if not problems and not as_json:
        output.line(f"{counted(count, 'run')}, tombstones, policy and versions of plans: intact")
    return ExitCode.FAILED if problems else ExitCode.DONE
