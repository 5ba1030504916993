"""The folder that a run works in. It is recorded with the run and compared on resume; moving it needs a new approval."""

import os
import shlex
from dataclasses import replace
from pathlib import Path

from plan_adapter.local.settings import Settings
from plan_adapter.model.canonical import approval_digest
from plan_adapter.model.errors import NotApprovedError
from plan_adapter.model.readable import one_line
from plan_adapter.model.record import PlanRun, RunFolder
from plan_adapter.text.commands import resume_command_after_gate, rollback_command
from plan_adapter.validation import BoundPlan

NO_INODE = "-"


def current_folder(settings: Settings) -> RunFolder | None:
    """Return the folder that a run in this process works in, with symlinks resolved; None if the current folder is gone."""
    try:
        path = os.path.realpath(Path.cwd())
    except OSError:
        return None
    files_root = path if settings.files_root is None else os.path.realpath(settings.files_root.expanduser())
    return RunFolder(_path_text(path), _path_text(files_root), f"{_inode(path)} {_inode(files_root)}")


def in_folder(bound: BoundPlan, folder: RunFolder | None) -> BoundPlan:
    """Return `bound` with an approval digest that covers `folder`, if the run was moved there."""
    if folder is None or not folder.is_moved:
        return bound
    validated = bound.validated
    digest = approval_digest(
        validated.digest, bound.inputs, validated.definitions, folder.content, permissions=validated.decided_permissions
    )
    return replace(bound, approval_digest=digest, folder=folder)


def why_elsewhere(recorded: RunFolder | None, now: RunFolder | None, *, by_path: bool = False) -> str | None:
    """Return how this process's folder differs from that of a run, or None if it does not or none is recorded.

    With `by_path`, a folder that replaced the recorded one at the same path counts as the same.
    """
    if recorded is None:
        return None
    if now is None:
        return f"works in {one_line(recorded.path)}, but the current folder no longer exists"
    if recorded.path != now.path:
        return f"works in {one_line(recorded.path)}, but the current folder is {one_line(now.path)}"
    if recorded.files_root != now.files_root:
        return f"keeps its files in {one_line(recorded.files_root)}, but here they are in {one_line(now.files_root)}"
    if not by_path and not _same_inodes(recorded.inodes, now.inodes):
        return f"works in {one_line(recorded.path)}, but that is another folder now"
    return None


def refuse_elsewhere(run: PlanRun, settings: Settings) -> None:
    """Raise NotApprovedError, with the command to type, if `run` works in another folder than this process."""
    now = current_folder(settings)
    if (why := why_elsewhere(run.folder, now)) is not None:
        here = f"`{resume_command_after_gate(run)} --here` asks for an approval of this folder"
        raise NotApprovedError(f"run {run.id} {why}, which nobody approved: {', '.join([*_original_folder_hints(run, now), here])}")


def _original_folder_hints(run: PlanRun, now: RunFolder | None) -> list[str]:
    """Return how to resume `run` where it ran, if that is possible."""
    if run.folder is None or why_elsewhere(run.folder, now, by_path=True) is None:
        return []
    if Path(run.folder.path).is_dir() or run.flow_run_id is None:
        return [f"{_command_in_folder(run.folder, resume_command_after_gate(run))} resumes it there"]
    return [
        f"the folder is not on this machine; if a deployment started it, `prefect flow-run retry {run.flow_run_id}` resumes it on a worker"
    ]


def refuse_rollback_elsewhere(run: PlanRun, settings: Settings) -> None:
    """Raise NotApprovedError if `run` would be rolled back in another folder. No approval can allow that."""
    why = why_elsewhere(run.folder, current_folder(settings), by_path=True)
    if why is not None and run.folder is not None:
        raise NotApprovedError(
            f"run {run.id} {why}: it can be rolled back only where it ran: {_command_in_folder(run.folder, rollback_command(run))}"
        )


def move_target(settings: Settings, run: PlanRun) -> RunFolder | None:
    """Return the current folder, marked as moved to, or None if `run` works in it already.

    Raises NotApprovedError if the current folder is gone.
    """
    now = current_folder(settings)
    if why_elsewhere(run.folder, now) is None:
        return None
    if now is None:
        raise NotApprovedError(f"run {run.id} cannot work here: the current folder no longer exists; change to another one")
    return replace(now, is_moved=True)


def folder_text(folder: RunFolder) -> str:
    """Return the folder as text for a gate: `/srv/app`, plus the folder for files if that is another one."""
    return folder.path if folder.files_root == folder.path else f"{folder.path}, files in {folder.files_root}"


def move_text(before: RunFolder | None, now: RunFolder | None) -> str | None:
    """Return a sentence that says how the folder of a run changed, or None if it did not."""
    if before is None or now is None or before == now:
        return None
    replaced = " (another folder at the same place)" if folder_text(before) == folder_text(now) else ""
    return f"the folder of the run changed: from {folder_text(before)} to {folder_text(now)}{replaced}"


def _command_in_folder(folder: RunFolder, command: str) -> str:
    files = "" if folder.files_root == folder.path else f"PLAN_ADAPTER_FILES_ROOT={shlex.quote(folder.files_root)} "
    return f"`cd {shlex.quote(folder.path)} && {files}{command}`"


def _inode(path: str) -> str:
    try:
        found = Path(path).stat()
    except OSError:
        return NO_INODE
    return f"{found.st_dev}:{found.st_ino}"


def _same_inodes(recorded: str, now: str) -> bool:
    # Ignore device numbers: on many file systems they change when the machine restarts.
    pairs = zip(recorded.split(), now.split(), strict=False)
    return all(NO_INODE in (old, other) or old.partition(":")[2] == other.partition(":")[2] for old, other in pairs)


def _path_text(path: str) -> str:
    return os.fsencode(path).decode(errors="backslashreplace")
