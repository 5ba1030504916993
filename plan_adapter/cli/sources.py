"""Find the plan, run, tools, inputs and store that the arguments of a command name."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from plan_adapter.cli import output
from plan_adapter.cli.exit_codes import UsageError
from plan_adapter.documents import is_test_file, read_document, read_file, read_mapping
from plan_adapter.loading import STORE_PREFIX, pin_files, pin_stored, stored_plan
from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import InvalidPlanError, ModelError, RunConflictError
from plan_adapter.model.problems import did_you_mean
from plan_adapter.model.readable import one_line, safe_name
from plan_adapter.model.status import PlanStatus

if TYPE_CHECKING:
    from plan_adapter.agent.openai_model import OpenAIModel
    from plan_adapter.execution.history import ResumeOptions
    from plan_adapter.gates.policy import EffectivePolicy
    from plan_adapter.model.plan import ExecutionPlan
    from plan_adapter.model.problems import Problem
    from plan_adapter.model.record import PlanRun
    from plan_adapter.store.store import PlanStore
    from plan_adapter.tools.registry import ToolRegistry

GIT = "git:"
STDIN = "<stdin>"
"""Stands for `-`, which the argument parser would take for an option."""

ENDINGS = (".yaml", ".yml", ".json")

_TOKEN = re.compile(r"[A-Za-z0-9_.@/:-]+")
_DIGEST = re.compile(r"(?:sha256:)?([0-9a-f]{8,64})")


def documents_in(folder: Path) -> list[Path]:
    """Return the plan documents of a folder, and their test files. Raises UsageError if it has no plan documents."""
    from plan_adapter.gates.standing_files import is_standing_file  # needed only for folders

    found = (path for path in folder.iterdir() if path.suffix in ENDINGS and not path.name.startswith("."))
    files = sorted(path for path in found if not is_standing_file(path))
    if all(is_test_file(path) for path in files):
        raise UsageError(f"the folder {folder} has no plan documents ({', '.join(ENDINGS)})")
    return files


def tools_of(imports: Sequence[str]) -> "ToolRegistry":
    """Return the tools of `--tools`, of PLAN_ADAPTER_TOOLS, of the entry points, and the built-in ones."""
    from plan_adapter.tools.registry import ToolRegistry  # not for a command that only reads the store

    return ToolRegistry.from_settings([*Settings().tools, *imports])


def open_store(settings: Settings) -> "PlanStore":
    """Return the store of the settings, as a context manager."""
    from plan_adapter.store.store import PlanStore  # imports SQLAlchemy

    return PlanStore(settings.store_url)


async def policy_of_store(settings: Settings) -> "EffectivePolicy":
    """Return the policy of the settings and their store combined, without creating a store."""
    from plan_adapter.gates.policy import effective_policy  # not for `plan validate`

    if settings.database_url is None and not (settings.home / "plans.db").exists():
        return effective_policy(settings)
    async with open_store(settings) as store:
        return await store.policy.effective(settings)


def drafting_tools_of(imports: Sequence[str], names: Sequence[str]) -> "ToolRegistry":
    """Return the tools that a model may plan with. Raises ToolDefinitionError for the reasons of `ToolRegistry.for_drafts`."""
    from plan_adapter.tools.registry import ToolRegistry  # not for a command that only reads the store

    return ToolRegistry.for_drafts([*Settings().tools, *imports], names)


def model_of(settings: Settings, name: str | None = None, url: str | None = None) -> "OpenAIModel":
    """Return the model of the command line or the settings, without calling it. Raises UsageError with what to set."""
    from plan_adapter.agent import configured  # only where a model is asked

    try:
        return configured.model_of(settings, name, url)
    except ModelError as error:
        raise UsageError(str(error)) from error


def read_plan(source: str) -> "tuple[ExecutionPlan | None, list[Problem]]":
    """Return the plan of a path or of stdin (`-`), and the problems of its document; a plan keeps them for validation."""
    return read_document(sys.stdin.read(), file=STDIN) if source == STDIN else read_file(source)


def is_stored(source: str) -> bool:
    """Return whether `source` names a stored plan: `store:name`, `store:name@version`, or a digest that is not a file."""
    return source.startswith(STORE_PREFIX) or (_DIGEST.fullmatch(source) is not None and not Path(source).exists())


def is_words(source: str) -> bool:
    """Return whether `source` is words for a model. A single token that is not a file is more likely a mistyped name."""
    return _TOKEN.fullmatch(source) is None and not is_plan(source)


_PATH = re.compile(r"[/\\]|\.(ya?ml|json)$", re.IGNORECASE)
"""What a path has and the name of a stored plan has not."""


def is_plan(source: str) -> bool:
    """Return whether `source` can name a plan: stdin, a stored plan, or an existing path."""
    return source == STDIN or is_stored(source) or os.path.exists(source)  # noqa: PTH110  # Path.exists raises for a long text


async def plan_of(source: str, store: "PlanStore | None" = None) -> "ExecutionPlan":
    """Return the plan of a path, of stdin (`-`), or of the store. Raises InvalidPlanError, StoreError."""
    if is_stored(source):
        return await _stored_plan(source, store)
    plan, problems = read_plan(source)
    if plan is None:
        raise InvalidPlanError(problems)
    await pin_stored(pin_files(plan), store)
    return plan


def pin(plan: "ExecutionPlan") -> None:
    """Load the plans that steps of `plan` run. Their problems become problems of the document that names them."""
    if stored := pin_files(plan):
        asyncio.run(pin_stored(stored))


async def named_plan(source: str, store: "PlanStore") -> "ExecutionPlan":
    """Return the plan of a path, of the store by its bare name, or of a git revision. Raises as `plan_of` does, and UsageError."""
    if source.startswith(GIT):
        revision, colon, path = source.removeprefix(GIT).partition(":")
        if not (revision and colon and path):
            raise UsageError(f"`{source}`: write git:REVISION:FILE, as in `git:HEAD~1:restart.yaml`")
        plan, problems = _read_git(revision, path)
        if plan is None:
            raise InvalidPlanError(problems)
        await pin_stored(pin_files(plan, read=lambda file: _read_git(revision, os.path.relpath(file))), store)
        return plan
    return await plan_of(source if is_plan(source) or _PATH.search(source) else f"{STORE_PREFIX}{source}", store)


def _read_git(revision: str, path: str) -> "tuple[ExecutionPlan | None, list[Problem]]":
    """Return the plan of a file as it was in a git revision, and the problems of its document. Raises UsageError if there was none."""
    where = path if path.startswith("/") else f"./{path}"
    command = ["git", "show", "--end-of-options", f"{revision}:{where}"]
    try:
        result = subprocess.run(command, capture_output=True, check=False)  # noqa: S603  # git only reads
    except FileNotFoundError as error:
        raise UsageError("git is not installed") from error
    if result.returncode != 0:
        raise UsageError(f"`{GIT}{revision}:{path}`: {one_line(result.stderr.decode(errors='replace').strip())}")
    return read_document(result.stdout.decode(errors="replace"), file=path)


async def _stored_plan(source: str, store: "PlanStore | None") -> "ExecutionPlan":
    if store is None:
        async with open_store(Settings()) as opened:
            return await _stored_plan(source, opened)
    digest = _DIGEST.fullmatch(source)
    if digest is not None:
        return await store.get(digest[1])
    return await stored_plan(source, store)


async def find_run(run_id: str, store: "PlanStore") -> "PlanRun":
    """Return the run with this id or a unique beginning of it. The id can also be that of its flow run, or of the flow run of a form."""
    try:
        return await store.run(run_id)
    except RunConflictError:
        flow_run_id = _parse_uuid(run_id)
        if flow_run_id is None:
            raise
        run = await store.ledger.run_of_flow(flow_run_id)
        if run is not None:
            return run
        gates = [gate for gate in await store.gates.find() if gate.flow_run_id == flow_run_id]
        if not gates:
            raise
        return await store.run(gates[0].run_id)


def _parse_uuid(text: str) -> str | None:
    try:
        return str(UUID(text))
    except ValueError:
        return None


async def names_of_runbook(runbook: str, store: "PlanStore") -> list[str]:
    """Return the plan names that `runbook` can mean: itself, and those of stored plans that Prefect shows under that name."""
    return [runbook, *(name for name in await store.names() if safe_name(name) == runbook)]


def parse_status(name: str | None) -> PlanStatus | None:
    """Return the status with this name, or None for None. Raises UsageError if there is none."""
    try:
        return None if name is None else PlanStatus(name)
    except ValueError:
        raise UsageError(f"there is no status `{name}`; {did_you_mean(name or '', list(PlanStatus))}") from None


def read_source_text(source: str, what: str) -> str:
    """Return the text of a file or of stdin (`-`). `what` is its name in errors. Raises UsageError if it cannot be read."""
    try:
        if source == STDIN:
            if sys.stdin.isatty():
                output.note(f"type {what}, then press Ctrl-D:")
            text = sys.stdin.read()
        else:
            text = Path(source).read_bytes().decode()
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a NUL in the path
        reason = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{what} cannot be read from {source}: {reason}") from error
    return text.removeprefix("\ufeff")


def input_texts(given: Sequence[str], file: Path | None) -> dict[str, str]:
    """Return the inputs of `--inputs FILE` and `--input name=value` as texts, which each input's type parses later."""
    texts = {} if file is None else _read_input_file(file)
    seen = set[str]()
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"`--input {pair}`: write --input name=value")
        if name.strip() in seen:
            raise UsageError(f"the input `{name.strip()}` is given twice")
        seen.add(name.strip())
        texts[name.strip()] = value
    return texts


def _read_input_file(file: Path) -> dict[str, str]:
    values, problems = read_mapping(file)
    if values is None or problems:
        raise InvalidPlanError(problems)
    return {name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for name, value in values.items()}


def resume_options_of(from_step: str | None, *, only_failed: bool, skip: list[str], because: str) -> "ResumeOptions | None":
    """Return which steps to run, skip or repeat; None for an ordinary resume. Raises UsageError."""
    from plan_adapter.execution.history import ResumeOptions  # only for a resume

    if bool(skip) != bool(because.strip()):
        raise UsageError("--skip STEP needs --because WHY, and --because needs --skip")
    if from_step is None and not only_failed and not skip:
        return None
    return ResumeOptions(from_step, only_failed, dict.fromkeys(skip, because))
