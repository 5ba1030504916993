"""Find the plan, run, tools, inputs and store that the arguments of a command name."""

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from plan_adapter.cli import output
from plan_adapter.cli.exit_codes import UsageError, without_hint
from plan_adapter.documents import is_test_file, read_document, read_file, read_mapping
from plan_adapter.loading import STORE_PREFIX, pin_files, pin_stored, stored_plan
from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import InvalidPlanError, ModelError, NotStoredError
from plan_adapter.model.problems import did_you_mean
from plan_adapter.model.readable import one_line, safe_name
from plan_adapter.model.status import PlanStatus

if TYPE_CHECKING:
    from plan_adapter.agent.openai_model import OpenAIModel
    from plan_adapter.execution.history import ResumeOptions
    from plan_adapter.gates.policy import EffectivePolicy
    from plan_adapter.model.plan import ExecutionPlan
    from plan_adapter.model.problems import Problem
    from plan_adapter.store.store import PlanStore
    from plan_adapter.tools.registry import ToolRegistry

GIT = "git:"
STDIN = "<stdin>"
"""Stands for `-`, which the argument parser would take for an option."""

ENDINGS = (".yaml", ".yml", ".json")

_TOKEN = re.compile(r"[A-Za-z0-9_.@/:-]+")
_DIGEST = re.compile(r"(?:sha256:)?([0-9a-f]{8,64})")
_PATH = re.compile(r"[/\\]|\.(ya?ml|json)$", re.IGNORECASE)
"""What a path has and the name of a stored plan has not."""


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

    if not settings.has_store:
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


def is_path(source: str) -> bool:
    """Return whether `source` is written as a path: it has a slash or ends like a plan document. The names of few stored plans do."""
    return _PATH.search(source) is not None


def is_document(source: str) -> bool:
    """Return whether `source` names a document rather than a stored plan: stdin (`-`), a git revision, a path or an existing file."""
    if source.startswith(STORE_PREFIX):
        return False
    return source == STDIN or source.startswith(GIT) or is_path(source) or os.path.isfile(source)  # noqa: PTH113  # Path raises for a long text


def is_words(source: str) -> bool:
    """Return whether `source` is words for a model. A single token is a plan, or a mistyped one."""
    if source == STDIN or source.startswith((STORE_PREFIX, GIT)) or _TOKEN.fullmatch(source) is not None:
        return False
    return not os.path.isfile(source)  # noqa: PTH113  # Path raises for a long text


async def plan_of(source: str, store: "PlanStore | None" = None) -> "ExecutionPlan":
    """Return the plan that `source` names: a document (`is_document`), or a stored plan by name, `name@version` or digest.

    Raises InvalidPlanError with the problems of a document, StoreError and UsageError.
    """
    if not is_document(source):
        async with _existing_store(store) as opened:
            if opened is None:
                raise UsageError(f"there is no file `{source}`, and no plan is stored yet")
            return await _stored_plan(source, opened)
    if source.startswith(GIT):
        return await _git_plan(source, store)
    plan, problems = read_plan(source)
    if plan is None:
        raise InvalidPlanError(await _with_stored_name(source, problems, store))
    await pin_stored(pin_files(plan), store)
    return plan


async def _stored_plan(source: str, store: "PlanStore") -> "ExecutionPlan":
    """Return a stored plan. Raises NotStoredError, and UsageError if a name could also be a mistyped file."""
    digest = _DIGEST.fullmatch(source)
    try:
        return await (stored_plan(source, store) if digest is None else store.get(digest[1]))
    except NotStoredError as error:
        if digest is not None or source.startswith(STORE_PREFIX) or "@" in source:
            raise
        raise UsageError(f"there is no file `{source}`, and {without_hint(error)}", hint=error.hint) from error


@contextlib.asynccontextmanager
async def _existing_store(store: "PlanStore | None") -> "AsyncGenerator[PlanStore | None]":
    """Yield `store` or that of the settings. None if there is none yet: a name that somebody mistyped creates no store."""
    settings = Settings()
    if store is not None or not settings.has_store:
        yield store
        return
    async with open_store(settings) as opened:
        yield opened


async def _with_stored_name(source: str, problems: "list[Problem]", store: "PlanStore | None") -> "list[Problem]":
    """Return the problems of a document that has no plan. If there is no such file, they name a stored plan or a file that is near."""
    if source == STDIN or os.path.exists(source):  # noqa: ASYNC240, PTH110  # Path raises for a long text
        return problems
    name = Path(source).stem
    async with _existing_store(store) as opened:
        if opened is not None and name in await opened.names():
            hint = f"check the path; a plan of this name is stored: `{name}`"
        elif (near := _near_file(Path(source))) is not None:
            hint = f"did you mean `{near}`?"
        else:
            return problems
    return [replace(problem, hint=hint) for problem in problems]


def _near_file(path: Path) -> Path | None:
    """Return the document in the folder of `path` whose name is nearest to that of `path`, or None."""
    try:
        files = {file.stem: file.name for file in path.parent.iterdir() if file.suffix in ENDINGS}
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return None
    near = get_close_matches(path.stem, files, n=1)
    return path.with_name(files[near[0]]) if near else None


async def _git_plan(source: str, store: "PlanStore | None") -> "ExecutionPlan":
    """Return the plan of `git:REVISION:FILE`. Raises InvalidPlanError, and UsageError if git has no such file."""
    revision, colon, path = source.removeprefix(GIT).partition(":")
    if not (revision and colon and path):
        raise UsageError(f"`{source}`: write git:REVISION:FILE, as in `git:HEAD~1:restart.yaml`")
    plan, problems = _read_git(revision, path)
    if plan is None:
        raise InvalidPlanError(problems)
    await pin_stored(pin_files(plan, read=lambda file: _read_git(revision, os.path.relpath(file))), store)
    return plan


def pin(plan: "ExecutionPlan") -> None:
    """Load the plans that steps of `plan` run. Their problems become problems of the document that names them."""
    if stored := pin_files(plan):
        asyncio.run(pin_stored(stored))


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


async def names_of_runbook(runbook: str, store: "PlanStore") -> list[str]:
    """Return the plan names that `runbook` can mean: itself, and those of stored plans that Prefect shows under that name."""
    return [runbook, *(name for name in await store.names() if safe_name(name) == runbook)]


def parse_status(name: str | None) -> PlanStatus | None:
    """Return the status with this name, or None for None. Raises UsageError if there is none."""
    try:
        return None if name is None else PlanStatus(name)
    except ValueError:
        raise UsageError(f"there is no status `{name}`", hint=did_you_mean(name or "", list(PlanStatus))) from None


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


def resume_options_of(from_step: str | None, *, only_failed: bool, skip: list[str], note: str) -> "ResumeOptions | None":
    """Return which steps to run, skip or repeat; None for an ordinary resume. Raises UsageError."""
    from plan_adapter.execution.history import ResumeOptions  # only for a resume

    if bool(skip) != bool(note.strip()):
        raise UsageError("--skip STEP needs --note WHY, and --note needs --skip")
    if from_step is None and not only_failed and not skip:
        return None
    return ResumeOptions(from_step, only_failed, dict.fromkeys(skip, note))
