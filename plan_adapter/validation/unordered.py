"""Warnings about steps without an order that use the same file, host or item. At least one of them writes."""

import re
from collections.abc import Iterator, Mapping, Sequence

from pydantic import JsonValue

from plan_adapter.expressions import has_expression
from plan_adapter.model.graph import reachable
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.validation.calls import Call
from plan_adapter.validation.dependencies import Dependencies
from plan_adapter.validation.findings import Findings

_MAX_CHARACTERS = 300
"""Longer texts are scripts or contents, in which most words name nothing."""

_WORDS = re.compile(r"""[^\s'"`=;|&<>(){}\[\],$]+""")
_FILE_OR_HOST = re.compile(r"[\w-][\w.-]*\.[A-Za-z][A-Za-z0-9]{0,5}")
_PROGRAMS = re.compile(r"(/usr(/local)?)?/s?bin/.*|/dev/.*|/tmp/?|\.{1,2}/?")
_ITEM = re.compile(r"\bitem\b")


def check_order(plan: ExecutionPlan, calls: Sequence[Call], dependencies: Dependencies, findings: Findings) -> None:
    """Warn about steps of a plan with `allow_parallel` that only the written order seems to order: they start at the same time.

    An explicit `depends_on: []` says that this is meant.
    """
    if plan.options.parallel_limit == 1:
        return
    _check_level([call for call in calls if call.step.group is None and not call.is_finally_step], dependencies.outer, findings)
    for group, inner in dependencies.inner.items():
        _check_level([call for call in calls if call.step.group == group], inner, findings)


def _check_level(calls: Sequence[Call], dependencies: Mapping[str, Sequence[str]], findings: Findings) -> None:
    users, found = dict[str, list[Call]](), dict[str, list[tuple[Call, Call]]]()
    for call in calls:
        things = sorted(_things(call))
        for thing in things:
            earlier = _unordered(call, users.get(thing, []), dependencies)
            if earlier is not None and "depends_on" not in call.step.model_fields_set:
                found.setdefault(thing, []).append((call, earlier))
                break
        for thing in things:
            users.setdefault(thing, []).append(call)
    for thing, pairs in found.items():
        _warn(thing, pairs, findings)


def _warn(thing: str, pairs: Sequence[tuple[Call, Call]], findings: Findings) -> None:
    """Warn once about everything that uses `thing`: each call, and the one that it does not wait for."""
    call, earlier = pairs[0]
    if len(pairs) == 1:
        message = f"`{call.step.id}` does not wait for `{earlier.step.id}`, which is written before it and also uses {thing}"
        hint = "add it to `depends_on`, or write `depends_on: []` if both may run at the same time"
    else:
        steps = ", ".join(f"`{later.step.id}`" for later, _ in pairs)
        message = f"{steps} do not wait for the steps that are written before them and also use {thing}"
        hint = "write `depends_on` or `order: sequence`, or `depends_on: []` if they may run at the same time"
    findings.warn("implicit-order", call.at, message, hint)


def _unordered(call: Call, users: Sequence[Call], dependencies: Mapping[str, Sequence[str]]) -> Call | None:
    """Return the nearest earlier user of the same thing if it or `call` writes and neither waits for the other."""
    if not users:
        return None
    before = reachable(dependencies, [call.step.id])
    for earlier in reversed(users):
        if earlier.step.id in before or (call.effect == "read" and earlier.effect == "read"):
            continue
        if call.step.id not in reachable(dependencies, [earlier.step.id]):
            return earlier
    return None


def _things(call: Call) -> set[str]:
    """Return the files, hosts and the item that the parameters of `call` name, as they are shown. Reads of the item do not count."""
    if call.tool is None or call.step.goal is not None or call.step.ask is not None:
        return set()
    code = call.tool.literal_parameters - {"command"}
    texts = [text for name, value in call.step.parameters.items() if name not in code for text in _texts(value)]
    found = {f"`{word}`" for text in texts if len(text) <= _MAX_CHARACTERS for word in _WORDS.findall(text) if _names_a_thing(word)}
    if call.step.group is not None and call.effect != "read" and any(has_expression(text) and _ITEM.search(text) for text in texts):
        found.add("the same item")
    return found


def _names_a_thing(word: str) -> bool:
    is_path = "/" in word and "://" not in word and not word.startswith("-") and len(word) > 1
    return (is_path or _FILE_OR_HOST.fullmatch(word) is not None) and _PROGRAMS.fullmatch(word) is None


def _texts(value: JsonValue) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for member in value.values() if isinstance(value, dict) else value:
            yield from _texts(member)
