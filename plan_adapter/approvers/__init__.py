"""Approvers to give to `run_plan`: code that answers at gates. Anything with a method `ask` is one, too (`approval.Approver`)."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plan_adapter.approvers.callback import CallbackApprover
    from plan_adapter.approvers.form import PrefectApprover
    from plan_adapter.approvers.policy import PolicyApprover, Rule
    from plan_adapter.approvers.terminal import TerminalApprover

_HOMES = {
    "CallbackApprover": "callback",
    "PolicyApprover": "policy",
    "PrefectApprover": "form",
    "Rule": "policy",
    "TerminalApprover": "terminal",
}

__all__ = ["CallbackApprover", "PolicyApprover", "PrefectApprover", "Rule", "TerminalApprover"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
