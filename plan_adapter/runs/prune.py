"""Delete the records and result files of old runs. Safe to repeat after an interruption."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from plan_adapter.gates.approval import refuse_operation, refuse_prune
from plan_adapter.gates.signatures import allowed_signers, sign, verify_signature
from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import NotApprovedError, StoreError
from plan_adapter.model.status import PlanStatus
from plan_adapter.store.retention import BATCH, OldRun
from plan_adapter.store.store import PlanStore

LOOKUP_BATCH = 500
"""How many result folders are looked up in one query."""


async def find_old_runs(
    older_than: timedelta,
    *,
    store: PlanStore,
    settings: Settings,
    by: str,
    names: Collection[str] | None = None,
    status: PlanStatus | None = None,
) -> list[OldRun]:
    """Return the runs that ended longer ago than this, oldest first, each with the reason why it is kept, or None.

    Raises NotApprovedError if the policy does not allow `by` to prune. If the plan of a run does not, the run is kept.
    """
    policy = await store.policy.effective(settings)
    refuse_prune(policy, by=by)
    found, refused = await store.retention.old_runs(await store.now() - older_than, names=names, status=status), set[str]()
    for digest in {run.digest for run in found if run.kept is None}:
        try:
            refuse_operation(await store.get(digest), policy, by=by, operation="prune")
        except NotApprovedError:
            refused.add(digest)
    return [
        replace(run, kept=f"{by} is not an operator of its plan") if run.kept is None and run.digest in refused else run for run in found
    ]


async def prune_runs(found: Sequence[OldRun], older_than: timedelta, *, store: PlanStore, by: str) -> AsyncIterator[list[OldRun]]:
    """Delete, in batches, the records of the runs in `found` that are not kept. Yield each batch after its deletion.

    A run in a batch is kept after all if it has changed since.
    """
    wanted = [run for run in found if run.kept is None]
    for first in range(0, len(wanted), BATCH):
        batch = wanted[first : first + BATCH]
        before = await store.now() - older_than
        kept = await store.retention.prune([run.id for run in batch], ended_before=before, by=by)
        yield [replace(run, kept=kept.get(run.id)) for run in batch]


async def sign_tombstones(key: Path, *, store: PlanStore, settings: Settings, by: str) -> int:
    """Sign the newest tombstone with `key`, the SSH key of `by`, and return its number; 0 if there was nothing to sign.

    Raises NotApprovedError if the key does not sign, or is not that of an allowed signer called `by`.
    """
    found = await store.retention.unsigned()
    if found is None:
        return 0
    number, text = found
    policy = await store.policy.effective(settings)
    signature = await asyncio.to_thread(sign, text, key=key)
    if policy.allowed_signers is not None:
        await asyncio.to_thread(verify_signature, text, signature, allowed=allowed_signers(policy), by=by)
    await store.retention.add_signature(number, by=by, signature=signature)
    return number


async def remove_results(store: PlanStore, folder: Path) -> int:
    """Remove the result files of pruned runs below `folder`, also those that an interrupted prune left. Return the number of these runs."""
    names, count = await asyncio.to_thread(_result_folders, folder), 0
    for first in range(0, len(names), LOOKUP_BATCH):
        for name in sorted(await store.retention.are_pruned(names[first : first + LOOKUP_BATCH])):
            try:
                await asyncio.to_thread(shutil.rmtree, folder / name)
            except OSError as error:
                raise StoreError(f"the results in {folder / name} cannot be removed: {error.strerror}; then repeat `plan prune`") from error
            count += 1
    return count


def _result_folders(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
