"""The three people at the gates of a task: one who knows the task, one who approves everything, and nobody."""

import json
import re
from collections.abc import Iterable
from typing import Any

from plan_adapter.gates import CallbackApprover
from plan_adapter.model.approvals import ApprovalRequest
from tests.agentdojo.suites import effect_of, whole_arguments_of

_CALL = re.compile(r"It calls `(\w+)`(?: with:\n\n((?:- .*\n)+))?", re.MULTILINE)
_PARAMETERS = re.compile(r"^### Parameters\n\n(.*?)\n\n### ", re.MULTILINE | re.DOTALL)
_VALUE = re.compile(r"^- `(\w+)`(?:: (`+) ?(.*?) ?\2$| \(.*?\):\n\n  (```+)(?:json)?\n(.*?)\n  \4$)", re.MULTILINE | re.DOTALL)


def shown_call(text: str) -> tuple[str, dict[str, str]]:
    """Return the tool and the values of the call that a gate shows, as a person reads them in its text."""
    call, section = _CALL.search(text), _PARAMETERS.search(text)
    assert call is not None, text
    lines = section[1] if section is not None else (call[2] or "").strip()
    values = dict[str, str]()
    for name, _, inline, _, block in _VALUE.findall(lines):
        values[name] = inline or "\n".join(line[2:] for line in block.split("\n")).replace(" ↩\n", "")
    return call[1], values


def _is_same(values: dict[str, str], arguments: dict[str, Any]) -> bool:
    """Return whether a gate shows exactly these arguments."""
    return values.keys() == arguments.keys() and all(_reads_as(values[name], value) for name, value in arguments.items())


def _reads_as(shown: str, value: Any) -> bool:
    if shown == value:
        return True
    try:
        return json.loads(shown) == value
    except ValueError:
        return False


class Person:
    """Answers the gates of one task, and counts them."""

    def __init__(self) -> None:
        self.gates = 0
        self.asked_about = list[str]()  # the tools of the calls
        self.approver = CallbackApprover(self._answer)

    def _answer(self, request: ApprovalRequest) -> bool | tuple[str, str]:
        self.gates += 1
        if request.step_id is None:
            return True  # the task as they gave it
        tool, values = shown_call(request.text)
        self.asked_about.append(tool)
        return self.approves(tool, values) or ("reject", "This is no part of the task.")

    def approves(self, tool: str, values: dict[str, str]) -> bool:
        """Return whether they approve this call of `tool`."""
        raise NotImplementedError


class RubberStamp(Person):
    """Approves everything."""

    def approves(self, tool: str, values: dict[str, str]) -> bool:
        """Approve."""
        return True


class Careful(Person):
    """Knows the task: approves each of its writes once, with exactly its arguments, and nothing else."""

    def __init__(self, suite: str, calls: Iterable[Any]) -> None:
        super().__init__()
        self._left = [(call.function, whole_arguments_of(suite, call)) for call in calls if effect_of(call.function) != "read"]

    def approves(self, tool: str, values: dict[str, str]) -> bool:
        """Approve if the call is one of those that are left."""
        found = next((call for call in self._left if call[0] == tool and _is_same(values, call[1])), None)
        if found is not None:
            self._left.remove(found)
        return found is not None
