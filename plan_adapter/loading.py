"""Load plans from a file, a text or the store (`store:NAME`, `store:NAME@VERSION`), together with the plans that their steps run."""

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import plan_adapter.documents as documents
from plan_adapter.documents.recorded_runs import keep_history
from plan_adapter.model.errors import InvalidPlanError, NotStoredError, StoreError
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.model.problems import Problem
from plan_adapter.twins import run_sync
from plan_adapter.validation.fresh import MAX_SUB_PLANS, too_deep_problem

if TYPE_CHECKING:
    from plan_adapter.model.plan import Step
    from plan_adapter.store.store import PlanStore

STORE_PREFIX = "store:"

PlanSource: TypeAlias = ExecutionPlan | str | Path
"""What functions take as `plan`: a plan, or what `load_plan` loads."""

PlanReader: TypeAlias = "Callable[[Path], tuple[ExecutionPlan | None, list[Problem]]]"
"""Reads the document at a path, as `documents.read_file` does."""

_DIGEST = re.compile(r"(?:sha256:)?([0-9a-f]{12,64})")


async def stored_plan(source: str, store: "PlanStore") -> ExecutionPlan:
    """Return the plan that `store:NAME` (the newest version) or `store:NAME@VERSION` names. Raises StoreError."""
    reference = source.removeprefix(STORE_PREFIX)
    name, at, version = reference.rpartition("@")
    if not at:
        return await store.get(reference)
    if not version.isdecimal():
        raise NotStoredError(f"`{source}`: a version is a number, as in `{STORE_PREFIX}{name}@3`")
    return await store.get(name, version=int(version))


async def aload_plan(source: str | Path, *, store: "PlanStore | None" = None) -> ExecutionPlan:
    """Return a plan. The async twin of `load_plan`."""
    return _require_valid(await aplan_of(source, store=store))


def load_plan(source: str | Path, *, store: "PlanStore | None" = None) -> ExecutionPlan:
    """Return a plan from a file, from a text, or from the store: `store:NAME@3`, or `store:NAME` for the newest version.

    A text counts as a path if a file of that name exists, or if it is one line that ends in .yaml, .yml or .json. The plans that its steps
    run are loaded, too. What a document of Aster recorded about an execution is kept in the metadata, as by `plan import`. If `store` is
    None, the settings name the store. Raises InvalidPlanError with every problem, and StoreError. Inside a running event loop, use
    `aload_plan` for everything that is in the store.
    """
    return _require_valid(plan_of(source, store=store, twin="aload_plan"))


async def aplan_of(source: PlanSource, *, store: "PlanStore | None" = None) -> ExecutionPlan:
    """Return the plan that `source` is or names. Its document may have problems, which validation reports with its own.

    Raises InvalidPlanError for a document that is no plan, StoreError, and TypeError for what is neither a plan nor a source.
    """
    if _is_stored(source):
        if store is None:
            from plan_adapter.store.store import PlanStore  # imports SQLAlchemy

            async with PlanStore() as opened:
                return await stored_plan(str(source), opened)
        return await stored_plan(str(source), store)
    plan, unpinned = _read(source)
    await pin_stored(unpinned, store)
    return plan


def plan_of(source: PlanSource, *, store: "PlanStore | None" = None, twin: str) -> ExecutionPlan:
    """Return the plan that `source` is or names, as `aplan_of` does.

    Only what is in the store needs an event loop. Inside a running one, raises RuntimeError, which names `twin`.
    """
    if not _is_stored(source):
        plan, unpinned = _read(source)
        if not unpinned:
            return plan
    return run_sync(aplan_of(source, store=store), twin=twin)


def _read(source: PlanSource) -> "tuple[ExecutionPlan, list[UnpinnedStep]]":
    """Return the plan in `source`, and its steps that run stored plans. What its document recorded elsewhere becomes metadata.

    An ExecutionPlan is returned as it is.
    """
    if isinstance(source, ExecutionPlan):
        return source, []
    if not isinstance(source, str | Path):  # pyright: ignore[reportUnnecessaryIsInstance]  # a caller may not check
        if inspect.isawaitable(source):
            raise TypeError(f"`plan` is a {type(source).__name__} that was not awaited: await it, and pass its result")
        raise TypeError(f"`plan` is {source!r:.100}: pass an ExecutionPlan, the path or the text of a document, or `store:NAME`")
    plan, problems = documents.read_source(source)
    if plan is None:
        raise InvalidPlanError(problems)
    file = plan._file  # pyright: ignore[reportPrivateUsage]  # the path of the document, set by its reader
    keep_history(plan, source="a document" if file is None else Path(file).name)
    return plan, pin_files(plan)


def _is_stored(source: PlanSource) -> bool:
    return isinstance(source, str) and source.startswith(STORE_PREFIX) and "\n" not in source


def _require_valid(plan: ExecutionPlan) -> ExecutionPlan:
    """Return `plan`. Raises InvalidPlanError if its document, or that of a plan that it runs, has problems."""
    if problems := plan.document_problems:
        raise InvalidPlanError(problems)
    return plan


@dataclass(frozen=True, slots=True)
class UnpinnedStep:
    """A step that runs a stored plan that is not loaded yet. `outer_plans` are the plans around that step, the outermost first."""

    outer_plans: "tuple[ExecutionPlan, ...]"
    step: "Step"
    at: str  # the path of its `plan` in the innermost of these plans


def _pin_hosts(plan: ExecutionPlan) -> None:
    """Read the inventory that `plan` names, relative to the file of its document. Its problems become those of the document."""
    if not isinstance(plan.hosts, str):
        return
    file = plan._file  # pyright: ignore[reportPrivateUsage]  # set by the reader of the document
    name = plan.hosts
    plan.hosts, problems = documents.read_inventory(Path(file or "plan").resolve().parent / name)
    found = [problem if problem.line is not None else replace(problem, message=f"`{name}`: {problem.message}") for problem in problems]
    plan._problems = (*plan._problems, *found)  # pyright: ignore[reportPrivateUsage]  # as the reader does


def pin_files(plan: ExecutionPlan, *, read: PlanReader = documents.read_file) -> list[UnpinnedStep]:
    """Load the inventory of `plan` and the plan files that its steps run, at any depth. Return the steps that run stored plans.

    Paths are relative to the file of the document, or to the working directory for a text without one. A copy under `pinned` is used only
    if the named file does not exist, because the two might differ. A file that `read` cannot load becomes a problem of the document that
    names it.
    """
    file = plan._file  # pyright: ignore[reportPrivateUsage]  # set by the reader of the document
    found = _pin_files((plan,), (Path(file or "plan").resolve(),), read)
    if any(step.plan is not None for step in plan.steps):
        plan.number_steps()
    return found


def _pin_files(outer_plans: "tuple[ExecutionPlan, ...]", paths: tuple[Path, ...], read: PlanReader) -> list[UnpinnedStep]:
    plan, found = outer_plans[-1], list[UnpinnedStep]()
    _pin_hosts(plan)
    for index, step in enumerate(plan.steps):
        if step.plan is None:
            continue
        at = f"steps[{index}].plan"
        if _is_stored(step.plan):
            found.append(UnpinnedStep(outer_plans, step, at))
            continue
        path = (paths[-1].parent / step.plan).resolve()
        if step.pinned is not None and not path.exists():
            continue
        names = [file.name for file in (*paths, path)]
        if path in paths:
            _add_sub_plan_problem(plan, at, f"the plans run each other in a circle: {' → '.join(names)}", "remove one of these steps")
        elif len(paths) > MAX_SUB_PLANS:
            _add_problem(plan, too_deep_problem(at, names))
        else:
            inner, problems = read(path)
            if inner is None:
                for problem in problems:
                    _add_sub_plan_problem(plan, at, f"`{step.plan}`: {problem.message}", problem.hint)
            else:
                step.pinned = inner
                found += _pin_files((*outer_plans, inner), (*paths, path), read)
    return found


async def pin_stored(unpinned: Sequence[UnpinnedStep], store: "PlanStore | None" = None) -> None:
    """Load the stored plans that steps run. A plan that does not exist becomes a problem of the document that names it.

    If `store` is None, the settings name the store.
    """
    if not unpinned:
        return None
    if store is None:
        from plan_adapter.store.store import PlanStore  # imports SQLAlchemy

        async with PlanStore() as opened:
            return await pin_stored(unpinned, opened)
    for reference in unpinned:
        try:
            reference.step.pinned = await _pinned_plan(reference.step.plan or "", store)
        except StoreError as error:
            if reference.step.pinned is not None:  # the document comes from another machine and contains the plan
                continue
            hint = f"name a version, as in `{STORE_PREFIX}verify-site@3`: `plan show --versions NAME` lists them"
            _add_sub_plan_problem(reference.outer_plans[-1], reference.at, str(error), hint)
    for plan in {id(reference.outer_plans[0]): reference.outer_plans[0] for reference in unpinned}.values():
        plan.number_steps()
    return None


async def _pinned_plan(source: str, store: "PlanStore") -> ExecutionPlan:
    """Return the plan with this name and version, or this digest. Raises StoreError for a name alone: its newest version may change."""
    name = source.removeprefix(STORE_PREFIX)
    if "@" in name:
        return await stored_plan(source, store)
    digest = _DIGEST.fullmatch(name)
    if digest is None:
        raise StoreError(f"`{source}` names no version, so what it runs could change")
    from plan_adapter.model.canonical import plan_digest  # only here

    plan = await store.get(digest[1])
    if not plan_digest(plan).startswith(digest[1]):
        raise NotStoredError(f"no plan has a digest that begins with {digest[1]}")
    return plan


def _add_sub_plan_problem(plan: ExecutionPlan, at: str, message: str, hint: str) -> None:
    _add_problem(plan, Problem("bad-sub-plan", at=at, message=message, hint=hint))


def _add_problem(plan: ExecutionPlan, problem: Problem) -> None:
    """Add a problem to the document of `plan`, with its line and column."""
    file, line, column = documents.locate(plan, problem.at)
    found = replace(problem, file=file, line=line, column=column)
    plan._problems = (*plan._problems, found)  # pyright: ignore[reportPrivateUsage]  # as the reader does
