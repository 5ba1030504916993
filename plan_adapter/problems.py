"""`Problem`, a finding about a plan document, and the catalogue of all codes for `plan explain`."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from types import MappingProxyType
from typing import Literal, TypeAlias

Severity: TypeAlias = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Problem:
    """A finding: its code, its location, what is wrong and how to fix it.

    `at` is a path in the document (`steps[2].depends_on[0]`). `line` and `column` count from 1 and are None for plans that come from no
    document.
    """

    code: str
    severity: Severity = "error"
    at: str = ""
    line: int | None = None
    column: int | None = None
    message: str = ""
    hint: str = ""
    file: str | None = None

    def __str__(self) -> str:
        """Return the finding on one line, in the form that editors and CI systems link: `file:line:column: severity[code] …`."""
        place = self.file or "plan"
        if self.line is not None:
            place += f":{self.line}:{self.column or 1}"
        path = f" at {self.at}" if self.at else ""
        hint = f"; {self.hint}" if self.hint else ""
        return f"{place}: {self.severity}[{self.code}]{path}: {self.message}{hint}"


def did_you_mean(word: str, known: Collection[str]) -> str:
    """Return `did you mean …?` with the nearest name in `known`, or a list of known names if none is near.

    The start of a name also counts as near. In a large collection, only names that differ by one letter (added, missing, replaced or
    swapped) count. Pass a frozenset, so that its index is cached.
    """
    if len(known) > 50:
        index = _one_letter_away(frozenset(known))
        near = next((index[key] for key in _with_one_letter_less(word.casefold()) if key in index), None)
        return f"did you mean `{near}`?" if near else _listed(frozenset(known))
    folded = {name.casefold(): name for name in known}
    close = get_close_matches(word.casefold(), list(folded), n=1, cutoff=0.6) or _shortened(word.casefold(), folded)
    if close:
        return f"did you mean `{folded[close[0]]}`?"
    return _listed(frozenset(known))


def _shortened(word: str, known: Collection[str]) -> list[str]:
    """Return the names that start with `word`, or that `word` starts with: `env` for `environment`."""
    return [name for name in known if min(len(name), len(word)) > 1 and (name.startswith(word) or word.startswith(name))]


@lru_cache(maxsize=4)
def _listed(known: frozenset[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in sorted(known)[:8])
    return f"known: {shown}" + (", …" if len(known) > 8 else "") if known else ""


@lru_cache(maxsize=4)
def _one_letter_away(known: frozenset[str]) -> dict[str, str]:
    return {key: name for name in sorted(known, reverse=True) for key in _with_one_letter_less(name.casefold())}


def _with_one_letter_less(word: str) -> list[str]:
    return [word, *(word[:place] + word[place + 1 :] for place in range(min(len(word), 64)))]


# code -> what it means and how to fix it. A test checks that every code in use is listed here.
CATALOGUE: Mapping[str, str] = MappingProxyType(
    {
        # the document as text
        "unreadable": "The file is missing, a directory, or may not be read. Give the path of a YAML or JSON file.",
        "not-utf8": "The file is not UTF-8 text. Save it as UTF-8.",
        "syntax": "The text is neither YAML nor JSON. The message names the first place that does not parse.",
        "too-deep": "The document nests deeper than 100 levels. A plan never needs that; flatten the parameters.",
        "too-large": "The document, or a number in it, is larger than what is accepted.",
        "anchor": (
            "YAML anchors and aliases are refused: they make documents that expand without bound and diffs that mislead. Write the "
            "value out."
        ),
        "tag": "YAML tags (`!name`) are refused: text is data. Remove the tag, or quote the text.",
        "several-documents": "The file holds more than one YAML document. Keep one plan per file.",
        "duplicate-key": "A key is written twice in one mapping; only one could count. Remove one of them.",
        "reserved-key": "A key starts with `__prefect`, which Prefect's server interprets. Rename it.",
        "not-a-number": "NaN and infinity are no JSON. Write a finite number, or the text in quotes.",
        "bad-text": "A text holds what no UTF-8 document can carry (an unpaired surrogate), or a control character where none may stand.",
        # its fields
        "wrong-type": "A field holds a value of another type than the one that it takes.",
        "bad-value": "A field's value is outside what it may be.",
        "unknown-field": (
            "No field is called so here. Unknown fields are refused, because a misspelt `requires_approval` must not be ignored."
        ),
        "missing-field": "A required field is missing. The message names it.",
        "unsupported-version": "Only `version: 1` of the plan document exists.",
        "not-yet": (
            "The field is part of the plan document, but this version does not execute it yet, and nothing that is written may be "
            "silently ignored."
        ),
        "no-steps": "A plan needs at least one step.",
        "no-description": "The description is missing or empty. It is what an approver reads first.",
        "bad-id": "A step id is a letter or underscore, then at most 63 letters, digits, underscores or hyphens (ASCII).",
        "reserved-id": "`in`, `true`, `false` and `null` are words of the expression language and cannot be step ids.",
        "duplicate-id": "Two steps have the same id. References and receipts need to tell them apart.",
        "unused-input": "No expression uses the input, or a step's `input` stands beside `parameters`, which alone are then handed over.",
        "bad-name": (
            "An input's name is a letter, then letters, digits or underscores (ASCII); words of Python, CEL and Prefect's flows are taken."
        ),
        "bad-input-definition": "The definition of an input contradicts itself, for instance a default that its own pattern refuses.",
        "bad-label": "A label names the items of a step's `for_each`. Write it with `${{ item… }}`, or remove it.",
        "bad-rollback": "`rollback_failed` stands in a step that has no `rollback`. Write one, or remove `rollback_failed`.",
        "bad-tag": (
            "A tag is fixed text of one line and at most 64 characters, without white space at its ends, invisible characters or `${{ }}`."
        ),
        "contradicting-policies": "`stop_on_error` and `continue_on_error` are both written and equal. Write one of them.",
        # its gates
        "bad-approver": (
            "A name under `approvers` is empty, or has white space at an end or an invisible character, so nobody is called so. Write "
            "names and groups as the settings and the approvers write them."
        ),
        "bad-operator": (
            "A name under `operators` is empty, or has white space at an end or an invisible character, so nobody is called so. Write "
            "names, groups and deployments (`flow/deployment`) as the settings, the accounts and Prefect write them."
        ),
        "duplicate-entry": "A list of tags or of the approval's policy names the same thing twice; it counts once.",
        "idle-policy": (
            "What is written about approvals changes nothing as the plan is: nobody is asked, or no time is set after which it would "
            "count. Set options.require_approval, a step's requires_approval or options.approval_timeout_ms, or remove it."
        ),
        "endless-gate": (
            "Nothing ends the wait at a gate but an answer: options.approval_timeout_ms is 0. A run that has given its worker back then "
            "waits where nobody looks, and reminders never end. Set the time."
        ),
        "weak-proof": (
            "The policy takes a proof of who answers (a signature, a one-time code, an account), and beside it a name that anyone may "
            "claim: the proof then proves nothing. Remove the weaker one from `known_by`."
        ),
        "many-gates": (
            "A step with a gate of its own stands in a `for_each` of many items: each of them asks. Approve the whole plan instead, "
            "whose preview shows the items, or let fewer items ask."
        ),
        # the graph
        "unknown-step": "A dependency names a step that does not exist.",
        "self-dependency": "A step depends on itself. Remove that dependency.",
        "cycle": "Steps depend on each other in a circle, so none of them could start. The message shows the path.",
        "not-an-ancestor": "An expression uses a step that cannot have ended before this one starts.",
        "duplicate-dependency": "A dependency is written twice; it counts once.",
        # drafts of a model
        "dropped-dependency": "A corrected answer leaves out a dependency that the answer before had, and with which nothing was wrong.",
        "broken-constraint": "The plan does not keep the order that a constraint asks for. Let the later step depend on the earlier one.",
        "taken-id": (
            "A model that plans what is left of a run gave a step the id of one that was begun. Receipts hang on ids, so that its steps "
            "have ids of their own."
        ),
        "unnamed-secret": (
            "A model used a secret that was not named to it. Name it in the request's `available_secrets`, or let the plan do without."
        ),
        "too-many-steps": "The plan has more steps than the request allows.",
        "approval-by-agent": (
            "A document that an agent hands in says who may approve or operate it. That is for a person to say: in the settings, or in a "
            "plan that a person saved in the store."
        ),
        # tools
        "unknown-tool": (
            "No tool of this name is in the registry. Give it with --tools package.module:name, PLAN_ADAPTER_TOOLS, or the entry "
            "point group plan_adapter.tools."
        ),
        "bad-parameters": "The parameters do not fit the tool: one is missing, unknown, or of the wrong type.",
        "bad-effect": "The effect is none of read, idempotent_write and write.",
        "lowered-effect": (
            "The step declares a smaller effect than its tool. That is the author's word; it is covered by the digest and shown at "
            "the gate."
        ),
        "retried-write": (
            "A step that writes has `max_retries`. Only known failures are retried, but what is not idempotent should not be retried "
            "at all."
        ),
        "no-model": (
            "The plan says `on_failure: replan`, and no model is configured where it is looked at. Where it is run, PLAN_ADAPTER_MODEL and "
            "its kin name one; without one a failure ends the run as it would otherwise."
        ),
        "expression-in-command": (
            '`${{ }}` inside a shell script would let data become code. Pass the value through `env` and use `"$NAME"` in the script.'
        ),
        # expressions
        "expression-syntax": "An expression in `${{ }}` does not parse.",
        "expression-type": (
            "An expression has the wrong type, or mixes types: CEL does no mixed arithmetic; use double(), int() or string()."
        ),
        "unknown-reference": "An expression uses a name that does not exist here: a step, an input, or a variable.",
        "hyphenated-id": 'CEL reads `steps.my-step` as a subtraction. Write `steps["my-step"]`.',
        "misplaced-secret": (
            "`secrets.<name>` stands where its value would be shown or kept, or decide something that people see. A secret may only be "
            "handed to a tool: in the `parameters` of a step or of its rollback, of a tool that does not pass them on to Prefect's server."
        ),
        "bad-secret-name": (
            "A secret's name is a letter or underscore, then at most 63 letters, digits, underscores, hyphens or dots (ASCII). A Prefect "
            'block of another type than Secret is named by its type and its name: `secrets["aws-secret/db"]`.'
        ),
        "expression-needed": "`when` and `for_each` are always an expression in `${{ }}`.",
        # the inputs of a run
        "missing-input": "An input without a default was not given. Give it with --input name=value.",
        "unknown-input": "The plan has no input of this name.",
        "bad-input": "The value does not fit the input's type or limits.",
        "missing-secret": (
            "A step uses a secret that no place has: a file in PLAN_ADAPTER_SECRETS_DIR, the environment's PLAN_ADAPTER_SECRET_NAME, a "
            "Prefect block, an entry point. A secret that is used only after steps that write is looked for when its step is called."
        ),
    }
)
