"""`Problem`, a finding about a plan document, and the catalogue of all codes for `plan explain`."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from types import MappingProxyType
from typing import Literal, TypeAlias

from pydantic_core import PydanticCustomError

Severity: TypeAlias = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Problem:
    """A finding: its code, its location, what is wrong and how to fix it.

    `at` is a path in the document (`steps[2].depends_on[0]`). `line` and `column` count from 1 and are None for plans that come from no
    document.
    """

    code: str  # what `plan explain` explains
    severity: Severity = "error"  # an error makes the plan invalid
    at: str = ""
    line: int | None = None
    column: int | None = None
    message: str = ""  # what is wrong
    hint: str = ""  # what to do
    file: str | None = None  # the document, if it is one of several

    def __str__(self) -> str:
        """Return the finding on one line, in the form that editors and CI systems link: `file:line:column: severity[code] …`."""
        place = self.file or "plan"
        if self.line is not None:
            place += f":{self.line}:{self.column or 1}"
        path = f" at {self.at}" if self.at else ""
        hint = f"; {self.hint}" if self.hint else ""
        return f"{place}: {self.severity}[{self.code}]{path}: {self.message}{hint}"


def value_error(code: str, message: str, hint: str = "") -> PydanticCustomError:
    """Return the error with which a validator of a document's model reports a problem of the value."""
    return PydanticCustomError("problem", "{message}", {"code": code, "message": message, "hint": hint})


def type_error(wanted: str, hint: str = "", **given: object) -> PydanticCustomError:
    """Return the error with which such a validator reports a type. `given` is what does not fit, if it is not the value itself."""
    return PydanticCustomError("wrong_type", "must be {wanted}", {"wanted": wanted, "hint": hint, **given})


_OTHER_WORDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "tool": ("tool_name",),
        "uses": ("tool_name",),
        "cmd": ("command", "argv"),
        "command": ("argv",),
        "script": ("command", "argv"),
        "args": ("argv", "parameters"),
        "arguments": ("argv", "parameters"),
        "with": ("parameters",),
        "needs": ("depends_on",),
        "if": ("when",),
        **dict.fromkeys(("list", "tuple", "sequence"), ("array",)),
        **dict.fromkeys(("dict", "map", "mapping"), ("object",)),
        **dict.fromkeys(("float", "double", "decimal"), ("number",)),
        **dict.fromkeys(("text", "data", "contents"), ("string", "content", "body")),
        "http_post": ("http_send",),
        "http_put": ("http_send",),
        "http_patch": ("http_send",),
        "http_delete": ("http_send",),
    }
)
"""What other programs call a field or a parameter, and what it is called here, in the first of these that exists."""


def did_you_mean(word: str, known: Collection[str]) -> str:
    """Return `did you mean …?` with the nearest name in `known`, or a list of known names if none is near.

    What other programs call something is near (`tool` for `tool_name`). The start of a name is also near, and so is the id of a step in its
    own plan: `certificate` for `verify.certificate`. In a collection of
    more than 50 names, only names that differ by one letter (added, missing, replaced or swapped) are near besides. Pass a frozenset to
    have its index cached.
    """
    meant = next((name for name in _OTHER_WORDS.get(word.casefold(), ()) if name in known), None)
    if meant is not None and word not in known:
        return f"did you mean `{meant}`?"
    if word not in known and (inside := next((name for name in sorted(known) if name.endswith(f".{word}")), None)) is not None:
        return f"did you mean `{inside}`?"
    if len(known) > 50:
        index = _deletion_index(frozenset(known))
        near = next((index[key] for key in _deletion_keys(word.casefold()) if key in index), None)
        return f"did you mean `{near}`?" if near else _known_names_text(frozenset(known))
    folded = {name.casefold(): name for name in known}
    close = get_close_matches(word.casefold(), list(folded), n=1, cutoff=0.6) or _prefix_matches(word.casefold(), folded)
    if close:
        return f"did you mean `{folded[close[0]]}`?"
    return _known_names_text(frozenset(known))


def _prefix_matches(word: str, known: Collection[str]) -> list[str]:
    """Return the names that start with `word`, or that `word` starts with: `env` for `environment`."""
    return [name for name in known if min(len(name), len(word)) > 1 and (name.startswith(word) or word.startswith(name))]


@lru_cache(maxsize=4)
def _known_names_text(known: frozenset[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in sorted(known)[:8])
    return f"known: {shown}" + (", …" if len(known) > 8 else "") if known else ""


@lru_cache(maxsize=4)
def _deletion_index(known: frozenset[str]) -> dict[str, str]:
    return {key: name for name in sorted(known, reverse=True) for key in _deletion_keys(name.casefold())}


def _deletion_keys(word: str) -> list[str]:
    return [word, *(word[:place] + word[place + 1 :] for place in range(min(len(word), 64)))]


# code -> what it means and how to fix it. A test checks that every code in use is listed here.
CATALOGUE: Mapping[str, str] = MappingProxyType(
    {
        # the document as text
        "unreadable": "The file is missing, is a directory, or cannot be read. Give the path of a YAML or JSON file.",
        "not-utf8": "The file is not UTF-8 text. Save it as UTF-8.",
        "syntax": "The text is neither YAML nor JSON. The message names the first place that cannot be parsed.",
        "too-deep": "The document nests deeper than 100 levels. A plan never needs that; flatten the parameters.",
        "too-large": "The document, or a number in it, is larger than the limit.",
        "anchor": (
            "YAML anchors and aliases are refused, because documents with them can expand without bound and diffs can mislead. Write the "
            "value out. `plan import` reads those of workflows and Automation documents, up to 100,000 copied values."
        ),
        "tag": "YAML tags (`!name`) are refused: text is data. Remove the tag, or quote the text.",
        "several-documents": "The file contains more than one YAML document. Keep one plan per file.",
        "duplicate-key": "A mapping contains the same key twice. Remove one of them.",
        "reserved-key": "A key starts with `__prefect`, which Prefect's server interprets. Rename it.",
        "not-a-number": "NaN and infinity are not JSON. Write a finite number, or the text in quotes.",
        "bad-text": "A text contains an unpaired surrogate, which UTF-8 cannot express, or a control character that is not allowed there.",
        # its fields
        "wrong-type": "The value of a field has the wrong type.",
        "bad-value": "The value of a field is not allowed.",
        "unknown-field": (
            "There is no field with this name here. Unknown fields are refused, because a misspelt `requires_approval` must not be ignored."
        ),
        "missing-field": "A required field is missing. The message names it.",
        "unsupported-version": "Only `version: 1` of the plan document exists.",
        "not-yet": (
            "The field is part of the plan document, but this version does not execute it yet. It is refused instead of being "
            "ignored silently."
        ),
        "no-steps": "A plan needs at least one step.",
        "no-description": "The description is missing or empty. It is what an approver reads first.",
        "bad-id": "A step id is a letter or underscore, then at most 63 letters, digits, underscores or hyphens (ASCII).",
        "reserved-id": "`in`, `true`, `false` and `null` are words of the expression language and cannot be step ids.",
        "duplicate-id": "Two steps have the same id, so references and receipts could not distinguish them.",
        "unused-input": "No expression uses the input, or a step has both `input` and `parameters`, and passes only `parameters`.",
        "bad-name": (
            "The name of an input, or of a field of a question, is a letter, then letters, digits or underscores (ASCII). Words of Python, "
            "CEL and Prefect are reserved, and in a question also the names of the fields that every form has."
        ),
        "bad-input-definition": "The definition of an input contradicts itself, such as a default that its own pattern refuses.",
        "bad-label": "A label names the items of a step's `for_each`. Write it with `${{ item… }}`, or remove it.",
        "bad-hosts": "The hosts of a plan cannot be used: names, groups, variables, or the inventory that the plan names.",
        "unknown-hosts": "An expression, or the input `on`, names a host or a group that the plan does not have, or leaves no host.",
        "bad-run-window": "A run window has a `cron` that cannot be read or never happens, or a `time_zone` that does not exist.",
        "bad-concurrency": "The `key` of `concurrency` is empty, or uses a value that is unknown before the first step. Use only `inputs`.",
        "bad-trigger": (
            "A trigger names no event or one that its own runs cause, has an expression without a value for an event, or is written twice. "
            "Expressions in `triggers` use only `event`: `event.id`, `event.name`, `event.occurred`, `event.resource`, `event.payload`."
        ),
        "bad-group": (
            "A group is a step with `for_each` and `steps`: its steps run once per item. It calls no tool itself, its steps have no lists "
            "of their own, and only they see each other's results. Elsewhere use `steps.<group>.result`."
        ),
        "bad-goal": (
            "A goal is a step whose `goal` says in words what is wanted. A model works it out with the step's `tools`, and chooses their "
            "arguments. The fields of a single call are not for goals, and `tools` and `max_rounds` are for nothing else."
        ),
        "open-read": (
            "The model of a goal may use a tool that reads without asking anybody, and `http_get` reads from any address: a text that "
            "tricks the model can make it put what it knows into a URL. Ask about each call (`requires_approval: true`), or write a tool "
            "that fetches only what the goal needs."
        ),
        "never-true": (
            "A `when` asks whether a step failed. The reference makes that step a dependency, and a step is skipped if one of its "
            "dependencies fails. Undo the failed step with a `rollback`, or react in `finally`, which knows `steps.<id>.status` and "
            "`run.failed_steps`."
        ),
        "needs-every-step": (
            "A `when` is true although a step that it names failed, as in `b completed || c completed`. But a step depends on each step "
            "that its `when` names, and is skipped if one of them fails. Let those steps complete and say in the result what they found: "
            "with `|| true` in a script, or with the parameter `expect_status` of `http_get`. Or move the step to `finally`."
        ),
        "chained-for-each-writes": (
            "Two steps write for the same list, one after the other. The first runs for all items before the second starts for any: all "
            "nodes are drained before one is restarted. To finish one item before the next, make them the `steps` of a group."
        ),
        "bad-runner": (
            "A step with `runner: dask` is called in a worker process, which imports its tool and the tool of its rollback by name. A "
            "function inside another one, or in a script, cannot be imported. `isolation` is for calls in the process of the run."
        ),
        "bad-rollback": (
            "A step with `rollback_failed` has no `rollback`: add one, or remove `rollback_failed`. Or a `finally` step has a `rollback`, "
            "which could never run: remove it."
        ),
        "bad-finally": (
            "`finally` steps run after all other steps, however those ended. They wait only for each other, no other step waits for them, "
            "and a failed one stops nothing but the steps that depend on it."
        ),
        "bad-tag": (
            "A tag is one line of fixed text with at most 64 characters, without spaces around it, invisible characters or `${{ }}`."
        ),
        "bad-run-name": "The name of a run is not empty, and uses only `inputs`: a run gets its name before any step.",
        "contradicting-policies": (
            "Two options contradict each other: `stop_on_error` and `continue_on_error` have the same value, or `require_approval` and "
            "`auto_approve` are both true. Set one of them."
        ),
        # its gates
        "bad-approver": (
            "A name under `approvers` is empty, or contains invisible characters or spaces around it, so it can match nobody. Write "
            "names and groups exactly as in the settings and the policy."
        ),
        "bad-quorum": (
            "More people must approve than the plan names, or it names none. `quorum` counts different people among `approvers`; a group "
            "counts as its members. As a warning: no run starts unless one of the names is a group with enough members."
        ),
        "bad-freeze": (
            "A change freeze of a policy says no period, or more than one kind of it, ends before it starts, never starts, has a time zone "
            "that does not exist, or a calendar that cannot be read."
        ),
        "bad-operator": (
            "A name under `operators` is empty, or contains invisible characters or spaces around it, so it can match nobody. Write "
            "names, groups and deployments (`flow/deployment`) exactly as in the settings, the policy and Prefect."
        ),
        "bad-question": (
            "A question (`ask`) has a text and at least one field, and no field of a tool call. No field holds a secret. With "
            "`expires: default` every field needs a default. `approvers` and `expires` of a step belong to a question."
        ),
        "bad-sub-plan": (
            "A step that runs another plan has fields of a call, or its plan cannot be loaded: there is no such file or version, the name "
            "has no version, plans run each other in a circle, or are nested more than 3 deep."
        ),
        "duplicate-entry": "A list of tags, permissions or secrets, or of the approval policy, contains the same entry twice.",
        "idle-policy": (
            "A field about approvals has no effect in this plan, because nobody is asked or because gates never expire. "
            "Set options.require_approval, a step's requires_approval or options.approval_timeout_ms, or remove the field."
        ),
        "nobody-may-answer": (
            "A gate in a plan that another plan runs needs an answer that both accept, and their lists of `approvers`, or of `known_by`, "
            "have nothing in common. Name somebody whom both accept. Two groups with different names may have members in common."
        ),
        "endless-gate": (
            "Only an answer ends the wait at a gate, because options.approval_timeout_ms is 0. A run that released its worker then "
            "waits forever, and reminders never end. Set the timeout."
        ),
        "weak-proof": (
            "The policy accepts a proof of identity (a signature, a one-time code, an account), but also a name that anyone can "
            "claim, so the proof is worth nothing. Remove the weaker one from `known_by`."
        ),
        "many-gates": (
            "A step with a gate of its own has a `for_each` with many items, and each of them asks. Approve the whole plan instead, "
            "whose preview shows the items, or let fewer items ask."
        ),
        # the graph
        "unknown-step": "A dependency names a step that does not exist.",
        "self-dependency": "A step depends on itself. Remove that dependency.",
        "cycle": "Steps depend on each other in a circle, so none of them can start. The message shows the path.",
        "not-an-ancestor": "An expression uses a step that cannot have ended before this one starts.",
        "implicit-order": (
            "With `allow_parallel`, two steps that use the same file, host or item start at the same time, and at least one of them "
            "writes. The order in which they are written does not count. Write `depends_on` (or `order: sequence`), or `depends_on: []` "
            "if both may run at the same time."
        ),
        "no-timeout": (
            "Nothing ends a command that hangs: neither the step's `timeout_ms`, nor the plan's `step_timeout_ms` or `total_timeout_ms`. "
            "Write one of them: a run that never ends holds its worker, and an approver does not know how long it can take."
        ),
        "capped-batch": (
            "A group has a `batch` above the `max_parallel` of its plan, which is 1 by default. The plan's limit counts, so fewer items "
            "than written are in progress at once."
        ),
        "duplicate-dependency": "A step names the same dependency twice.",
        # drafts of a model
        "dropped-dependency": "A corrected answer of a model leaves out a dependency that was correct in its previous answer.",
        "broken-constraint": "The plan does not keep the order that a constraint requires. Let the later step depend on the earlier one.",
        "taken-id": (
            "A model that replans a run gave a new step the id of a step that has started. Receipts belong to ids, so new steps "
            "need new ids."
        ),
        "unnamed-secret": (
            "A model used a secret that the request does not name. Name it in `available_secrets`, or draft the plan without it."
        ),
        "too-many-steps": "The plan has more steps than the request allows.",
        "approval-by-agent": (
            "A document from an agent says who may approve, answer or operate, or gives permissions. Only a person may decide that, in the "
            "settings or in a plan that the person saved in the store."
        ),
        # tests
        "bad-answer": (
            "A test file has an answer that nothing asks for, or one that cannot happen: a timeout for a step without a timeout, an answer "
            "at a gate that the plan does not have, or an answer that is not one of `result`, `failure` and `timeout`."
        ),
        # tools
        "unknown-tool": (
            "The registry has no tool with this name. Add it with --tools package.module:name, PLAN_ADAPTER_TOOLS, or the entry "
            "point group plan_adapter.tools."
        ),
        "bad-parameters": "The parameters do not match the tool: one is missing, unknown, or of the wrong type.",
        "bad-effect": "The effect is not one of read, idempotent_write and write.",
        "lowered-effect": (
            "The step declares a weaker effect than its tool. This is the author's claim. The digest covers it, and it is shown at "
            "the gate."
        ),
        "not-permitted": (
            "A step calls a tool that needs a permission, and the plan does not give it, or does not give it to a run with these "
            "inputs. A person gives it with `permissions: [name]` in the plan, and whoever approves the plan approves that, too."
        ),
        "bad-permission": (
            "A name under `permissions` is empty, or contains invisible characters or spaces around it: write it exactly as the tool does. "
            "Or the expression under `permissions` cannot be decided before the run, or gives no list of such names."
        ),
        "retried-write": (
            "A step that writes has `max_retries`. Only known failures are retried, but a call that is not idempotent should not be "
            "retried at all."
        ),
        "no-dask": (
            "The plan has a step with `runner: dask`, and Dask is not installed where it runs: install the extra `dask` there, and on the "
            "scheduler and the workers."
        ),
        "no-model": (
            "The plan has a goal, or `on_failure: replan`, but no model is configured here. Set PLAN_ADAPTER_MODEL and its related "
            "settings where the plan runs. Without a model, a plan with a goal is not run, and a failure ends the run as usual."
        ),
        "expression-in-command": (
            '`${{ }}` in a shell script would turn data into code. Pass the value through `env` and use `"$NAME"` in the script.'
        ),
        # expressions
        "expression-syntax": "An expression in `${{ }}` cannot be parsed.",
        "expression-type": (
            "An expression has the wrong type, or mixes types. CEL has no mixed arithmetic: use double(), int() or string()."
        ),
        "unknown-reference": "An expression uses a name that does not exist here: a step, an input, or a variable.",
        "hyphenated-id": 'CEL reads `steps.my-step` as a subtraction. Write `steps["my-step"]`.',
        "misplaced-secret": (
            "`secrets.<name>` is used where its value would be shown or stored, or would affect what people see. Pass secrets only "
            "to a tool, in the `parameters` of a step or its rollback, and not to a tool that sends its parameters to Prefect's server."
        ),
        "bad-secret-name": (
            "A secret's name is a letter or underscore, then at most 63 letters, digits, underscores, hyphens or dots (ASCII). A Prefect "
            'block of another type than Secret is named by type and name: `secrets["aws-secret/db"]`.'
        ),
        "near-expression": (
            "A text contains what another language would take for a value: `{{ inputs.host }}`, `{inputs.host}`, `${inputs.host}` or "
            "`$inputs.host`. It is passed as it is written. Write `${{ inputs.host }}` for the value."
        ),
        "expression-needed": "`when` and `for_each` must be an expression in `${{ }}`.",
        # the inputs of a run
        "missing-input": "A required input is missing. Pass it with --input name=value.",
        "unknown-input": "The plan has no input with this name.",
        "bad-input": "The value does not match the input's type or limits.",
        "secret-in-text": (
            "The plan, an input or another text contains the value of a secret. It would stand in the record and at the gate. Name the "
            "secret in a step's parameters instead, as `${{ secrets.NAME }}`: the step gets the value when it is called."
        ),
        "missing-secret": (
            "A step uses a secret that is in none of these places: a file in PLAN_ADAPTER_SECRETS_DIR, PLAN_ADAPTER_SECRET_NAME, a "
            "Prefect block, or an entry point. If a step creates the secret, name it in `creates_secrets` of that step."
        ),
        "early-secret": (
            "A step uses a secret that another step creates (`creates_secrets`), and may run before that step has ended. Let it depend "
            "on that step. A rollback may run as soon as its own step has completed."
        ),
        "secret-created-twice": "Two steps create the same secret, so it is not known which value a later step gets.",
        "unused-secret": "A step creates a secret that no step uses. Correct the name, or remove it.",
    }
)
