"""Erase values in the record and the result files of a run that has ended. Safe to repeat after an interruption."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import JsonValue

from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import StoreError
from plan_adapter.model.record import PlanRun
from plan_adapter.runs.run_session import require_operator
from plan_adapter.store.proof.erasing import Erasure, file_digest, file_text
from plan_adapter.store.store import PlanStore
from plan_adapter.tools.files import write_below

STAGED = ".erased"
"""The suffix of a new result file until the record names its digest."""


async def preview_erasure(run_id: str, fields: Sequence[str], *, store: PlanStore, settings: Settings, by: str) -> Erasure:
    """Return what `erase_values` would erase. Raises the same errors."""
    run, files = await _prepare(run_id, store, settings, by=by)
    return await store.retention.preview_erasure(run.id, fields, files=files)


async def erase_values(run_id: str, fields: Sequence[str], *, store: PlanStore, settings: Settings, by: str) -> Erasure:
    """Erase the values of `fields` and return what was erased.

    Raises NotApprovedError if `by` is not an operator of the run's plan, RunConflictError as `Retention.erase` does, and StoreError if a
    result file cannot be read or written.
    """
    run, files = await _prepare(run_id, store, settings, by=by)
    erasure = await store.retention.erase(run.id, fields, files=files, stage=_stage, by=by)
    await _finish(run, store, settings)
    return erasure


async def _prepare(run_id: str, store: PlanStore, settings: Settings, *, by: str) -> tuple[PlanRun, dict[str, JsonValue]]:
    """Return the run and the contents of its result files by path, once an interrupted erasure is complete."""
    run = await store.run(run_id, with_steps=False)
    policy = await store.policy.effective(settings)
    await require_operator(await store.get(run.digest), run, store, policy, by=by, operation="erase")
    await _finish(run, store, settings)
    return run, await asyncio.to_thread(_read_results, settings.results_path / run.id)


def _read_results(folder: Path) -> dict[str, JsonValue]:
    try:
        return {str(path): json.loads(path.read_bytes()) for path in sorted(folder.glob("*.json")) if not path.is_symlink()}
    except (OSError, ValueError) as error:
        raise StoreError(f"the result files in {folder} cannot be read: {error}") from error


def _stage(files: Mapping[str, JsonValue]) -> None:
    """Write the new contents of result files beside the old ones."""
    for path, content in files.items():
        root = Path(path).parent.resolve()
        try:
            write_below(root, root / f"{Path(path).name}{STAGED}", file_text(content), mode=0o600)
        except OSError as error:
            raise StoreError(f"the result file {path} cannot be replaced: {error.strerror}") from error


async def _finish(run: PlanRun, store: PlanStore, settings: Settings) -> None:
    """Put new result files in place of the old ones if the record names them. The others come from an erasure that was not committed."""
    staged = await asyncio.to_thread(lambda: sorted((settings.results_path / run.id).glob(f"*{STAGED}")))
    if not staged:
        return
    kept = {path: digest for tombstone in await store.retention.tombstones(run.id) for path, digest in tombstone.replaced.items()}
    await asyncio.to_thread(_replace_results, staged, kept)


def _replace_results(staged: Sequence[Path], kept: Mapping[str, str]) -> None:
    for path in staged:
        target = path.with_name(path.name.removesuffix(STAGED))
        try:
            if kept.get(str(target)) == file_digest(path.read_bytes()):
                path.replace(target)
            else:
                path.unlink()
        except OSError as error:
            raise StoreError(f"the result file {target} cannot be replaced: {error.strerror}; then repeat `plan erase`") from error
