"""Where a verb's plan, tools, inputs, store and run come from: what the words of a command line mean."""

import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from plan_adapter.cli import output
from plan_adapter.cli.codes import UsageError
from plan_adapter.settings import Settings

if TYPE_CHECKING:
    from plan_adapter.agent.openai_model import OpenAIModel
    from plan_adapter.execution.redrive import Redrive
    from plan_adapter.plan import ExecutionPlan
    from plan_adapter.policy import PolicyInForce
    from plan_adapter.problems import Problem
    from plan_adapter.store.store import PlanStore
    from plan_adapter.tools.registry import ToolRegistry

STORED = "store:"
STDIN = "<stdin>"
"""What `-` is turned into, which the parser of arguments would take for an option."""

_TOKEN = re.compile(r"[A-Za-z0-9_.@/:-]+")
_DIGEST = re.compile(r"(?:sha256:)?([0-9a-f]{8,64})")


def tools_of(imports: Sequence[str]) -> "ToolRegistry":
    """Return the tools of `--tools`, of PLAN_ADAPTER_TOOLS, of the entry points, and the built-in ones."""
    from plan_adapter.tools.registry import ToolRegistry

    return ToolRegistry.from_settings([*Settings().tools, *imports])


def open_store(settings: Settings) -> "PlanStore":
    """Return the store of the settings, to be entered."""
    from plan_adapter.store.store import PlanStore

    return PlanStore(settings.store_url)


async def policy_of_store(settings: Settings) -> "PolicyInForce":
    """Return what the settings and the policy of their store demand together, for commands that change nothing: no store is made."""
    from plan_adapter.policy import policy_in_force

    if settings.database_url is None and not (settings.home / "plans.db").exists():
        return policy_in_force(settings)
    async with open_store(settings) as store:
        return await store.policy_in_force(settings)


def drafting_tools_of(imports: Sequence[str], names: Sequence[str]) -> "ToolRegistry":
    """Return the tools that a model may plan with; see `ToolRegistry.for_drafts`, which raises ToolDefinitionError."""
    from plan_adapter.tools.registry import ToolRegistry

    return ToolRegistry.for_drafts([*Settings().tools, *imports], names)


def model_of(settings: Settings, name: str | None = None, url: str | None = None) -> "OpenAIModel":
    """Return the model of the command line, else of the settings, of which nothing was asked; raises UsageError with what to set."""
    from plan_adapter.agent import configured
    from plan_adapter.errors import ModelError

    try:
        return configured.model_of(settings, name, url)
    except ModelError as error:
        raise UsageError(str(error)) from error


def read_plan(source: str) -> "tuple[ExecutionPlan | None, list[Problem]]":
    """Return the plan of a path, or of `-`, stdin, and its document's problems; a plan with problems keeps them for validation."""
    from plan_adapter.documents import read_document, read_file

    return read_document(sys.stdin.read(), file=STDIN) if source == STDIN else read_file(source)


def is_stored(source: str) -> bool:
    """Return whether `source` names a plan in the store: `store:name`, `store:name@version`, or a digest that is no file."""
    return source.startswith(STORED) or (_DIGEST.fullmatch(source) is not None and not Path(source).exists())


def is_words(source: str) -> bool:
    """Return whether `source` is words for a model, not where a plan is: a single token that is no file is rather a name mistyped."""
    return _TOKEN.fullmatch(source) is None and not is_plan(source)


def is_plan(source: str) -> bool:
    """Return whether a plan may stand at `source`: stdin, a name in the store, or a path that is there."""
    return source == STDIN or is_stored(source) or os.path.exists(source)  # noqa: PTH110  # Path.exists raises for a long text


async def plan_of(source: str, store: "PlanStore | None" = None) -> "ExecutionPlan":
    """Return the plan of a path, `-` for stdin, or of the store, opened if it was not given. Raises InvalidPlanError, StoreError."""
    from plan_adapter.errors import InvalidPlanError

    if is_stored(source):
        return await _stored_plan(source, store)
    plan, problems = read_plan(source)
    if plan is None:
        raise InvalidPlanError(problems)
    return plan


async def _stored_plan(source: str, store: "PlanStore | None") -> "ExecutionPlan":
    if store is None:
        async with open_store(Settings()) as opened:
            return await _stored_plan(source, opened)
    digest = _DIGEST.fullmatch(source)
    if digest is not None:
        return await store.get(digest[1])
    name, at, version = source.removeprefix(STORED).rpartition("@")
    if at and not version.isdecimal():
        raise UsageError(f"`{source}`: a version is a number, as in `store:{name}@3`")
    return await store.get(name, version=int(version)) if at else await store.get(version)


def text_of(source: str, what: str) -> str:
    """Return the text of a file, or of `-`, stdin; raises UsageError, which calls it `what`."""
    try:
        if source == STDIN:
            if sys.stdin.isatty():
                output.note(f"{what}, then Ctrl-D:")
            text = sys.stdin.read()
        else:
            text = Path(source).read_bytes().decode()
    except (OSError, ValueError) as error:  # ValueError: no UTF-8, or a NUL in the path
        reason = "it is no UTF-8 text" if isinstance(error, UnicodeDecodeError) else getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{what} cannot be read from {source}: {reason}") from error
    return text.removeprefix("\ufeff")


def input_texts(given: Sequence[str], file: Path | None) -> dict[str, str]:
    """Return the inputs of `--inputs FILE` and of each `--input name=value`, as texts that each input's type is to parse."""
    texts = {} if file is None else _file_inputs(file)
    written = set[str]()
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"`--input {pair}`: write --input name=value")
        if name.strip() in written:
            raise UsageError(f"the input `{name.strip()}` is given twice")
        written.add(name.strip())
        texts[name.strip()] = value
    return texts


def _file_inputs(file: Path) -> dict[str, str]:
    from plan_adapter.documents import read_mapping
    from plan_adapter.errors import InvalidPlanError

    values, problems = read_mapping(file)
    if values is None or problems:
        raise InvalidPlanError(problems)
    return {name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for name, value in values.items()}


def redrive_of(from_step: str | None, *, only_failed: bool, skip: list[str], because: str) -> "Redrive | None":
    """Return what the options ask for, None where they ask for nothing special; raises UsageError."""
    from plan_adapter.execution.redrive import Redrive

    if bool(skip) != bool(because.strip()):
        raise UsageError("--skip STEP and --because WHY go together")
    if from_step is None and not only_failed and not skip:
        return None
    return Redrive(from_step, only_failed, dict.fromkeys(skip, because))
