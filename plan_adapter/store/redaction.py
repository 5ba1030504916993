"""Keep the values of secrets out of what people and programs tell the store. Every method that records their words is a `@records`.

Notes, reasons and results are redacted. What a digest or a signature covers cannot be redacted: it is refused, with its place.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

from pydantic import JsonValue
from sqlalchemy import Connection, select

from plan_adapter.execution.redactor import Redactor
from plan_adapter.local.credentials import is_worth_redacting
from plan_adapter.local.secrets import known_values
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import Approval
from plan_adapter.model.errors import InvalidPlanError, NotApprovedError
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.model.problems import Problem
from plan_adapter.store.database.database import StorePart, writes
from plan_adapter.store.database.rows import load_json
from plan_adapter.store.database.tables import gates, plans, revisions, runs

if TYPE_CHECKING:
    from types import CoroutineType

S = TypeVar("S", bound=StorePart)
P = ParamSpec("P")
T = TypeVar("T")

WORDS = frozenset({"note", "because", "reason", "message", "result"})
"""The fields and parameters with words of a person or a program."""

_SIGNED = frozenset({"because", "result"})
_SECRET_NAME = re.compile(r"\bsecrets\s*(?:\.\s*([A-Za-z_]\w*)|\[\s*\\?[\"']([^\"'\\]+))")


def records(work: Callable[Concatenate[S, Connection, P], T]) -> "Callable[Concatenate[S, P], CoroutineType[Any, Any, T]]":
    """Do what `database.writes` does for a method that records words of a person or program, with secrets redacted in them.

    The secrets are those of the run that the arguments name, and all that this process can see. Raises NotApprovedError as
    `without_secrets` does.
    """
    write, parameters = writes(work), signature(work)

    @wraps(write)
    async def recording(part: S, *args: P.args, **kwargs: P.kwargs) -> T:
        bound = parameters.bind(part, None, *args, **kwargs)
        given = dict[str, Any](list(bound.arguments.items())[2:])
        approval = next((value for value in given.values() if isinstance(value, Approval)), None)
        redactor = await redactor_of(part, run_id=given.get("run_id") or (approval and approval.run_id), gate_id=given.get("gate_id"))
        for name, value in given.items():
            if is_dataclass(value) and not isinstance(value, type):
                bound.arguments[name] = without_secrets(value, redactor.value)
            elif name in WORDS or (name == "by" and isinstance(value, str) and not value.isalpha()):
                bound.arguments[name] = redactor.value(cast("JsonValue", value))
        return await write(part, *bound.args[2:], **bound.kwargs)

    return recording


def without_secrets(said: T, redact: Callable[[JsonValue], JsonValue]) -> T:
    """Return `said` with the values of secrets redacted in its words.

    Raises NotApprovedError if that would change an answer to a question, something that was signed, or the name of the person.
    """
    by = getattr(said, "by", "")
    if not by.isalpha() and redact(by) != by:  # a plain word may be the name of an account and a weak secret
        raise NotApprovedError("the name of the person contains the value of a secret, and names are recorded and shown: leave it out")
    words = {field.name: getattr(said, field.name) for field in fields(cast("Any", said)) if field.name in WORDS}
    changed = {name: shown for name, text in words.items() if (shown := redact(text)) != text}
    if "result" in changed and isinstance(said, Approval):
        raise NotApprovedError("the answer contains the value of a secret, and answers are recorded and shown: leave it out")
    if not _SIGNED.isdisjoint(changed) and getattr(said, "signature", None) is not None:
        raise NotApprovedError("what was signed contains the value of a secret: remove the value, then sign again")
    return cast("T", replace(cast("Any", said), **changed)) if changed else said


async def redactor_of(part: StorePart, *, run_id: str | None = None, gate_id: str | None = None) -> Redactor:
    """Return a redactor for what is said about a run or at one of its gates: its secrets, and all that this process can see."""
    if run_id is None and gate_id is None:
        return Redactor.of(await known_values(Settings(), ()))
    return Redactor.of(await known_values(Settings(), await part._database.read(lambda it: _names_of_run(it, run_id, gate_id))))  # pyright: ignore[reportPrivateUsage]


async def refuse_secrets(parts: Mapping[str, JsonValue], names: Collection[str] = ()) -> None:
    """Raise InvalidPlanError, with every place, if `parts` contain the value of a secret: documents that a digest covers.

    The secrets are `names`, those that `parts` use, and all that this process can see. Values that are a plain word, or short, are let
    through: they may stand there for another reason, and they are redacted in what is recorded of calls.
    """
    text = json.dumps(dict(parts), ensure_ascii=False)
    values = await known_values(Settings(), names_in(text).union(names))
    redactor = Redactor.of(value for value in values if is_worth_redacting(value) and not value.isalpha())
    if not redactor or redactor.text(text) == text:
        return
    hint = "write `${{ secrets.NAME }}` in the parameters of the step that needs it, which gets the value when it is called"
    message = "this contains the value of a secret, and it is recorded and shown"
    places = [at for part, value in parts.items() for at in _places(value, part, redactor)]
    if places:
        raise InvalidPlanError([Problem("secret-in-text", at=at, message=message, hint=hint) for at in places])


def names_in(document: str) -> set[str]:
    """Return the names of the secrets that a document may use."""
    return {name or quoted for name, quoted in _SECRET_NAME.findall(document)}


def _names_given(document: str, inputs: Mapping[str, JsonValue]) -> set[str]:
    """Return the names of secrets that `inputs` give to the plan of a stored document, or that it gives to the plans inside it."""
    if '"type":"secret"' not in document:  # as stored: no input is of this type
        return set()
    from plan_adapter.validation.named_secrets import find_named_secrets  # only for such a plan

    try:
        plan = ExecutionPlan.model_validate_json(document)
    except ValueError:  # a newer version wrote it, and this one does not run it
        return set()
    return {name for given in find_named_secrets(plan, inputs).values() for name in given.values()}


def _names_of_run(connection: Connection, run_id: str | None, gate_id: str | None) -> set[str]:
    """Return the names of the secrets in all versions of a run's plan, and in its inputs. `run_id` may be the beginning of its id."""
    if run_id is not None:
        same = runs.c.id.startswith(run_id.lower(), autoescape=True)
    else:
        same = runs.c.id == select(gates.c.run_id).where(gates.c.id == gate_id).scalar_subquery()
    found = connection.execute(select(runs.c.id, runs.c.digest, runs.c.inputs).where(same)).all()
    earlier = select(revisions.c.digest).where(revisions.c.run_id.in_([row.id for row in found]))
    digests = {*(row.digest for row in found), *connection.scalars(earlier)}
    documents = [*connection.scalars(select(plans.c.document).where(plans.c.digest.in_(digests)))]
    given = [cast("dict[str, JsonValue]", load_json(row.inputs)) for row in found]
    named = {name for document in documents for inputs in given for name in _names_given(document, inputs)}
    return named.union(*map(names_in, documents))


def _places(value: JsonValue, at: str, redactor: Redactor) -> Iterator[str]:
    if isinstance(value, dict):
        for key, member in value.items():
            where = f"{at}.{key}" if at else key
            yield from [at] if redactor.text(key) != key else _places(member, where, redactor)
    elif isinstance(value, list):
        for index, member in enumerate(value):
            yield from _places(member, f"{at}[{index}]", redactor)
    elif redactor.value(value) != value:
        yield at
