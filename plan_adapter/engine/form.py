"""The form of a gate: `build_form` builds what Prefect shows and its server checks; `parse_answer` parses the untrusted answer.

The sentences that Prefect shows about an open gate are here, too.
"""

import json
import re
from collections.abc import Collection, Mapping
from datetime import UTC
from functools import partial
from typing import Any, Literal, cast

from prefect.input import RunInput
from pydantic import ConfigDict, Field, JsonValue, create_model

from plan_adapter.gates.quorum import progress_line
from plan_adapter.model.approvals import GATE_ANSWERS, Answer, ApprovalRequest, GateKind, GatePolicy
from plan_adapter.model.language import in_all_languages, later, tr
from plan_adapter.model.options import Input
from plan_adapter.model.readable import call_name, counted, one_line, prose
from plan_adapter.model.values import refuse_constant
from plan_adapter.text.commands import SHOWN_DIGITS, open_form_notice, show_command, ways_to_answer
from plan_adapter.text.gate_text import split_text, without_picture
from plan_adapter.validation.inputs import form_schema

MAX_NAME_CHARACTERS = 200
MAX_NOTE_CHARACTERS = 4000
MAX_CODE_CHARACTERS = 16
MAX_SIGNATURE_CHARACTERS = 20_000
MAX_RESULT_CHARACTERS = 20_000
MAX_LISTED_APPROVERS = 50
MAX_TEXT_CHARACTERS = 100_000
"""The limit of a description. Prefect accepts far more, but browsers hang on the picture and the tables."""

ARTIFACT = "plan-to-approve"
"""The key of the artifact that holds the full text of a plan gate, with its picture."""

_ALL_DETAILS = later("All details: read them before you answer")
_FOLD = "<details><summary><b>{}</b></summary>"

_NO_ANSWER_HERE = "an answer as described above (this page takes none)"
"""The name of a property that no answer can have. Prefect's UI shows it when it refuses one."""

DECISION = "decision"
"""The name of the field of the decision, as long as the page shows the content that it showed first."""

_REQUIRED: Any = ...
_SIGN_COMMANDS: dict[GateKind, str] = {"approval": "approve", "question": "answer", "outcome": "resolve --api"}
_DIGEST = re.compile(r"[0-9a-f]{8,64}")
_BOUND_DECISION = re.compile(rf"{DECISION}_[0-9a-f]{{{SHOWN_DIGITS}}}")
_LIMITS = {
    "decision": MAX_NAME_CHARACTERS,
    "approver": MAX_NAME_CHARACTERS,
    "note": MAX_NOTE_CHARACTERS,
    "code": MAX_CODE_CHARACTERS,
    "signature": MAX_SIGNATURE_CHARACTERS,
    "digest": MAX_NAME_CHARACTERS,
}
_OUTCOME_LIMITS = _LIMITS | {"result": MAX_RESULT_CHARACTERS}


class NotAnAnswerError(ValueError):
    """A form came back without a complete answer. The message says why and is written for the person who answered."""


def build_form(request: ApprovalRequest, *, takes_codes: bool = True, decision: str = DECISION) -> type[RunInput]:
    """Return the form of `request` as a model. Every rule is in its JSON schema, because the server checks nothing else.

    Without `takes_codes` it has no field for a one-time code: anyone could read and submit it. `decision` is the name of the field of the
    decision: see `decision_field`.
    """
    own = _fields_of_question(request) if request.kind == "question" and request.fields else None

    class Form(RunInput):
        model_config = ConfigDict(json_schema_extra=None if own is None else partial(_prepend_fields, own))

    fields: dict[str, Any] = {
        decision: (Literal[GATE_ANSWERS[request.kind]], _decision_field(request.kind)),
        **({"result": (str, _result_field())} if request.kind == "outcome" and "result" in request.fields else {}),
        "approver": (str, _approver_field(request.gate_policy)),
        **_proof_fields(request.gate_policy, command=f"plan {_SIGN_COMMANDS[request.kind]} --sign", takes_codes=takes_codes),
        "note": (str, _note_field(tr("How you know.") if request.kind == "outcome" else None)),
    }
    return create_model("Outcome" if request.kind == "outcome" else "Answer", __base__=Form, **fields)


def decision_field(digest: str, first_digest: str) -> str:
    """Return the name of the field of the decision about the content `digest`, on a page that showed `first_digest` first.

    Prefect checks an answer against the form that the page has now, not the one that a person has read. So the form of other content
    requires a field with its digest in the name, and an answer that was read before is refused.
    """
    return DECISION if digest == first_digest else f"{DECISION}_{digest[:SHOWN_DIGITS]}"


def _decision_field(kind: GateKind) -> Any:
    # One line in each UI, so that the field stays in view.
    if kind == "approval":
        return Field(title=tr("Decision"), description=tr("reject ends the run. request_changes needs a note."))
    if kind == "question":
        return Field(
            default="answer", title=tr("Answer or reject"), description=tr("With reject the run ends, whatever the other fields say.")
        )
    return Field(title=tr("Your answer"), description=tr("Give your name below, then press Resume or Submit."))


def _result_field() -> Any:
    description = tr('With done: what the call returned, as JSON (text in quotes: "v3"). Leave it empty for none.')
    return Field(default="", max_length=MAX_RESULT_CHARACTERS, title=tr("Result"), description=description)


def _fields_of_question(request: ApprovalRequest) -> dict[str, Input]:
    """Return the fields of a question, the first one with the question in its description.

    With four fields or more, Prefect's older UI gives the text above them no room.
    """
    first, *others = request.fields
    field, question = request.fields[first], one_line(request.description)[:MAX_NOTE_CHARACTERS]
    described = f"{question} {field.description}" if field.description else question
    return {first: field.model_copy(update={"description": described}), **{name: request.fields[name] for name in others}}


def _prepend_fields(fields: Mapping[str, Input], schema: dict[str, Any]) -> None:
    """Put the fields of a question before the others of the form. A field without a default is required, even to reject."""
    own = form_schema(fields)
    properties = {**cast("dict[str, Any]", own["properties"]), **schema["properties"]}
    schema["properties"] = {name: {**field, "position": position} for position, (name, field) in enumerate(properties.items())}
    # A condition on `decision` would let a rejection leave them out, but the UIs would call every field optional.
    schema["required"] = [*cast("list[str]", own["required"]), *schema["required"]]


def notice_schema() -> dict[str, JsonValue]:
    """Return the schema of a form without fields that takes no answer."""
    # The server refuses the button Resume with: 'an answer as described above …' is a required property. It refuses every value as well.
    return {"title": "Notice", "type": "object", "properties": {}, "required": [_NO_ANSWER_HERE], "additionalProperties": False}


def _note_field(description: str | None = None) -> Any:
    return Field(default="", max_length=MAX_NOTE_CHARACTERS, title=tr("Note"), description=description)


def form_description(
    request: ApprovalRequest, *, refused: str | None = None, takes_codes: bool = True, links: Mapping[str, str] | None = None
) -> str:
    """Return the Markdown above the form: why the last answer was refused, the first screen of the request, and the rest folded.

    The rest begins with `links`, addresses by title.

    Prefect's newer UI folds the rest, so that `decision` stays in view. The older UI shows it in a scrolling box.
    """
    first, rest = split_text(_truncate(without_picture(request.text), request))
    named = [" · ".join(f"[{title}]({url})" for title, url in links.items())] if links else []
    parts = [first, *([_FOLD.format(tr(_ALL_DETAILS)), *named, rest, "</details>"] if rest else named)]
    if not takes_codes:
        parts.insert(0, f"**{tr('This form does not accept one-time codes.')}** {open_form_notice(request)}")
    if request.agreements:
        parts.insert(0, f"**{prose(progress_line(request.gate_policy, request.agreements))}**")
    if refused:
        consequence = tr("Nothing has run") if request.step_id is None else tr("This call was not made")
        consequence = tr("Nothing was decided") if request.kind != "approval" else consequence
        why = tr("**The last answer was refused:** {why}.", why=prose(refused).rstrip("."))
        parts.insert(0, f"{why} **{tr('{consequence}; please answer again.', consequence=consequence)}**")
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def without_folding(description: str) -> str:
    """Return a text made by `form_description` without the marks that fold it, for a terminal."""
    for text in in_all_languages(_ALL_DETAILS):
        description = description.replace(f"\n{_FOLD.format(text)}\n\n", "\n")
    return description.replace("\n\n</details>\n", "\n")


def parse_answer(submitted: object, kind: GateKind = "approval", fields: Collection[str] = ()) -> Answer:
    """Return the answer given in a form of this kind, not yet verified. Raises NotAnAnswerError unless it is complete.

    `fields` are those of a question. Their values are checked later, with the identity of the person who answered.

    An empty answer, a missing decision, an unknown field or a value that is not text is never an approval.
    """
    if not isinstance(submitted, dict) or not submitted:
        raise NotAnAnswerError("the form came back empty")
    values, limits = cast("dict[str, object]", submitted), _OUTCOME_LIMITS if kind == "outcome" else _LIMITS
    fields = fields if kind == "question" else ()
    given = cast("dict[str, JsonValue]", {name: values[name] for name in fields if values.get(name) is not None})
    values = _with_plain_decision({name: value for name, value in values.items() if name not in fields})
    if unknown := sorted(str(name) for name in values.keys() - limits.keys()):
        raise NotAnAnswerError(f"the answer has fields that the form does not have: {', '.join(unknown[:5])[:200]}")
    if wrong := [name for name, value in values.items() if not isinstance(value, str) and value is not None]:
        raise NotAnAnswerError(f"`{wrong[0]}` is not text")
    texts = {name: value for name, value in cast("dict[str, str | None]", values).items() if value is not None}
    if long := [name for name, text in texts.items() if len(text) > limits[name]]:
        raise NotAnAnswerError(f"`{long[0]}` has more than {counted(limits[long[0]], 'character')}")
    decision = texts.get("decision", "answer" if kind == "question" else None)
    if decision not in GATE_ANSWERS[kind]:
        raise NotAnAnswerError(f"the decision is missing; it is one of {', '.join(GATE_ANSWERS[kind])}")
    by = texts.get("approver", "").strip()
    if not by:
        raise NotAnAnswerError("the name of the person who answers is missing")
    digest = texts.get("digest", "").strip().casefold()
    if digest and not _DIGEST.fullmatch(digest):
        raise NotAnAnswerError("`digest` is not a digest")
    if decision == "request_changes" and not texts.get("note", "").strip():
        raise NotAnAnswerError("the note is empty: say in it what to change")
    return Answer(
        decision="approve" if decision == "answer" else decision,
        by=by,
        note=texts.get("note", ""),
        channel="form",
        code=texts.get("code", "").strip() or None,
        signature=texts.get("signature", "").strip() or None,
        result=_parse_result(texts.get("result", ""), decision) if kind != "question" else given if decision == "answer" else None,
        digest=digest or None,
    )


def _with_plain_decision(values: Mapping[str, object]) -> dict[str, object]:
    """Return `values` with the decision under its plain name, and the digest that its name had."""
    found = [name for name in values if _BOUND_DECISION.fullmatch(name)]
    if not found:
        return dict(values)
    if len(found) > 1 or DECISION in values or values.get("digest"):
        raise NotAnAnswerError("the answer has more than one decision")
    others = {name: value for name, value in values.items() if name not in (found[0], "digest")}
    return {**others, DECISION: values[found[0]], "digest": found[0].removeprefix(f"{DECISION}_")}


def _parse_result(text: str, decision: str) -> JsonValue:
    if not text.strip():
        return None
    if decision != "done":
        raise NotAnAnswerError(f"only `done` takes a result, not `{decision}`")
    try:
        return json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise NotAnAnswerError(f'the result is not JSON ({error}); put text in quotes, as in "v3"') from None


def form_values(answer: Answer, *, decision: str = DECISION) -> dict[str, JsonValue]:
    """Return `answer` as the values of a form whose field of the decision is called `decision`."""
    values: dict[str, JsonValue] = {decision: answer.decision, "approver": answer.by, "note": answer.note}
    proofs = {"code": answer.code, "signature": answer.signature}
    if answer.decision == "approve" and isinstance(answer.result, dict):  # at a question
        values |= {**answer.result, decision: "answer"}
    elif answer.result is not None:
        values["result"] = json.dumps(answer.result, ensure_ascii=False)
    return values | {name: proof for name, proof in proofs.items() if proof}


def _approver_field(gate_policy: GatePolicy) -> Any:
    names = [*dict.fromkeys((*(gate_policy.approvers or ()), *gate_policy.escalate_to))] if gate_policy.approvers else []
    # Whom approvers will name is not known yet. A person who may answer only later is told so.
    listed = names if 0 < len(names) <= MAX_LISTED_APPROVERS and not gate_policy.delegate else None
    return Field(
        min_length=1,
        max_length=MAX_NAME_CHARACTERS,
        pattern=r"\S",
        title=tr("Your name"),
        json_schema_extra={"enum": cast("list[Any]", listed)} if listed else None,
    )


def _proof_fields(gate_policy: GatePolicy, *, command: str, takes_codes: bool) -> dict[str, Any]:
    """Return the fields in which people prove their identity. A field is required if the gate accepts no other proof."""
    known_by = tuple(method for method in gate_policy.known_by or () if method != "totp" or takes_codes)
    fields = dict[str, Any]()
    if "totp" in known_by:
        is_only_proof = known_by == ("totp",)
        code = Field(
            default=_REQUIRED if is_only_proof else "",
            pattern=r"^[0-9]{6}$" if is_only_proof else r"^([0-9]{6})?$",
            title=tr("One-time code"),
            description=tr("The six digits that your authenticator app shows now."),
        )
        fields["code"] = (str, code)
    if "ssh_signature" in known_by:
        is_only_proof = known_by == ("ssh_signature",)
        description = tr("`{command}` fills it in; leave it empty in the browser.", command=command)
        if is_only_proof:
            description = tr("`{command}` fills it in and answers here.", command=command)
        signature = Field(
            default=_REQUIRED if is_only_proof else "",
            min_length=1 if is_only_proof else None,
            max_length=MAX_SIGNATURE_CHARACTERS,
            title=tr("SSH signature"),
            description=description,
        )
        fields["signature"] = (str, signature)
    return fields


def _truncate(text: str, request: ApprovalRequest) -> str:
    """Return `text`, cut at the last heading, paragraph or line before the limit, with a note on where to read the rest."""
    if len(text) <= MAX_TEXT_CHARACTERS:
        return text
    kept = text[:MAX_TEXT_CHARACTERS]
    ends = (kept.rfind(boundary, MAX_TEXT_CHARACTERS // 2) for boundary in ("\n#", "\n\n", "\n"))
    kept = kept[: next((end for end in ends if end > 0), len(kept))]
    if fence := _open_fence(kept):
        kept += f"\n{fence}"
    rest = counted(len(text) - len(kept), "character")
    command_text = f"`{show_command(request)}`"
    places = command_text
    if request.step_id is None:
        places = tr("{command}, or the artifact `{artifact}` of this flow run", command=command_text, artifact=ARTIFACT)
    cut = tr("**Cut here: {characters} more.** Read all of it before you answer: {places}.", characters=rest, places=places)
    return f"{kept}\n\n{cut}"


def _open_fence(text: str) -> str | None:
    """Return the line that closes a code block left open in `text`. It has the block's indent, or it would open another block."""
    opened: tuple[str, str] | None = None
    for indent, fence, more in re.findall(r"^( {0,3})(`{3,}|~{3,})([^\n]*)$", text, re.MULTILINE):
        if opened is None:
            opened = indent, fence
        elif fence.startswith(opened[1]) and not more.strip():
            opened = None
    return None if opened is None else "".join(opened)


def called_step(request: ApprovalRequest) -> str:
    """Return the name of the step, and of its item, that the request is about."""
    return call_name(str(request.step_id), request.item, request.label, kind=request.call_kind)


_UI_INSTRUCTION = later("with the button Resume (in Prefect's newer UI: in the menu ⋮)")
"""Where each of Prefect's UIs has the button on the flow run's page."""


def waiting_message(request: ApprovalRequest) -> str:
    """Return a sentence that says that the gate of `request` is open and how to answer it."""
    ways = ways_to_answer(request, request.gate_policy.known_by, form=tr(_UI_INSTRUCTION))
    if request.kind == "outcome":
        return tr("asks how {call} ended; its outcome is unknown: answer {ways}", call=called_step(request), ways=ways)
    when = None if request.expires_at is None else f"{request.expires_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    until = "" if when is None else tr(", until {when}", when=when)
    if request.kind == "question":
        return tr("waits for an answer to a question{until}: answer {ways}", until=until, ways=ways)
    return tr("waits for an approval{until}: answer {ways}", until=until, ways=ways)


def lost_form_message(request: ApprovalRequest) -> str:
    """Return a sentence that says how to answer the gate of `request`, whose form Prefect does not keep."""
    ways = ways_to_answer(request, request.gate_policy.known_by)
    return tr("Prefect does not keep the form of this gate, so it cannot be answered on its page: answer {ways}", ways=ways)


def paused_message(request: ApprovalRequest) -> str:
    """Return the message of the paused state."""
    name = one_line(request.name)[:MAX_NAME_CHARACTERS]
    if request.kind == "approval":
        return tr("Waiting for an approval of {name}", name=name)
    if request.kind == "question":
        return tr("Waiting for an answer to the question `{step}` of {name}", step=request.step_id, name=name)
    return tr("Waiting to know how `{call}` of {name} ended", call=called_step(request), name=name)
