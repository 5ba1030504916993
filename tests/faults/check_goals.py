"""Rules for goals after every fault: no model answer is paid for twice, and every call is one the model decided on."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator

from tests.faults.evidence import Evidence, Row, Violation
from tests.faults.goals import ModelCall, token_of
from tests.faults.plans import ANSWERS
from tests.faults.world import Unit

_CITED = re.compile(r"^(E[0-9]+):")
_MODEL_CALLS = ("decision", "check")


def goal_violations(evidence: Evidence) -> list[Violation]:
    """Return every violation of a rule by the goals of a run."""
    return [violation for rule in RULES for violation in rule(evidence)]


def no_answer_is_paid_for_twice(evidence: Evidence) -> Iterator[Violation]:
    """Check that each model call has an intent, and that another start repeats it only if the receipt is missing."""
    paid = _by_round(evidence)
    made = defaultdict[Unit, list[int]](list)
    for unit, number in evidence.attempts:
        if unit[0].partition(" ")[0] in _MODEL_CALLS:
            made[unit].append(number)
    for unit, calls in paid.items():
        if len(calls) > len(made[unit]):
            yield Violation("paid twice", f"{unit} was answered {len(calls)} times, with {len(made[unit])} intents")
    for unit, numbers in made.items():
        starts = [evidence.started_in.get((unit, number)) for number in numbers]
        if len(set(starts)) < len(starts):
            yield Violation("paid twice", f"{unit} was answered more than once in one of the starts {starts}")
        done = evidence.done.get(unit)
        if done is not None and (later := [number for number in numbers if number > done["number"]]):
            yield Violation("paid twice", f"{unit} had succeeded with attempt {done['number']}, and attempts {later} followed")


def answers_are_kept(evidence: Evidence) -> Iterator[Violation]:
    """Check that the record has the model's answers, and that the model receives the answers in the record."""
    paid = _by_round(evidence)
    for unit, row in evidence.done.items():
        kind, _, step_id = unit[0].partition(" ")
        if kind not in _MODEL_CALLS or step_id not in evidence.goals:
            continue
        result, answers = json.loads(row["result"]), [call.text for call in paid.get(unit, ())]
        is_judged = kind == "check" and evidence.goals[step_id].done_when is not None and result["verdict"] in ("met", "cannot_tell")
        if (kind == "decision" or is_judged or answers) and (
            result["text"] if kind == "decision" else result["evidence"]["reason"]
        ) not in answers:
            yield Violation("untrue", f"the receipt of {unit} says {result}, but the model answered {answers}")
    for call in evidence.model_calls:
        recorded = [_text_of(evidence.answer("decision", call.step, item)) for item in range(call.round)]
        if call.earlier_answers != recorded:
            yield Violation("stale", f"in round {call.round + 1} of {call.step} the model received {call.earlier_answers}, not {recorded}")
        rows = [evidence.done.get((call.step, item)) for item in range(call.round)]
        seen = [None if row is None else token_of(json.loads(row["result"])) for row in rows]
        if call.observed != seen:
            yield Violation("stale", f"in round {call.round + 1} of {call.step} the model received {call.observed}, not {seen}")


def calls_are_those_decided_on(evidence: Evidence) -> Iterator[Violation]:
    for (unit, number), row in evidence.attempts.items():
        if unit[0] not in evidence.goals or unit[1] is None:
            continue
        step = evidence.step_of(unit)
        expected = None if step is None else ("ask", {"question": step.ask.question}) if step.ask else (step.tool_name, step.parameters)
        if expected != (made := (row["tool_name"], json.loads(row["parameters"]))):
            yield Violation("undecided", f"{unit}, attempt {number}, is {made}, but the model decided on {expected}")
        if (done := evidence.done.get(unit)) is None or step is None:
            continue
        result = json.loads(done["result"])
        tokens = {line.token for line in evidence.by_unit.get(unit, ())}
        is_true = result == {name: ANSWERS[name] for name in step.ask.fields} if step.ask else result.get("token") in tokens
        if not is_true:
            yield Violation("untrue", f"the receipt of {unit} says {result}, the world {sorted(tokens)}")


def completed_goals_cite_evidence(evidence: Evidence) -> Iterator[Violation]:
    for step_id in evidence.goals:
        if (row := evidence.done.get((step_id, None))) is None:
            continue
        result = json.loads(row["result"])
        items = {item["id"]: item for item in result["evidence"]}
        cited = _CITED.match(result["summary"])
        if cited is None or cited[1] not in items:
            yield Violation("no evidence", f"{step_id} completed, but `{result['summary']}` cites none of {sorted(items)}")
        for item in items.values():
            if item["success"] != ((step_id, item["round"] - 1) in evidence.done):
                yield Violation("no evidence", f"{item['id']} of {step_id} differs from the receipt of round {item['round']}")
        check = evidence.answer("check", step_id, result["rounds"] - 1)
        person = evidence.done.get((step_id, result["rounds"] - 1))
        is_met = check is not None and (check["verdict"] == "met" or (check["verdict"] == "cannot_tell" and person is not None))
        if not is_met:
            yield Violation("not met", f"{step_id} completed in round {result['rounds']}, but its check says {check}")


RULES = (no_answer_is_paid_for_twice, answers_are_kept, calls_are_those_decided_on, completed_goals_cite_evidence)


def _by_round(evidence: Evidence) -> dict[Unit, list[ModelCall]]:
    found = defaultdict[Unit, list[ModelCall]](list)
    for call in evidence.model_calls:
        found[f"{call.kind} {call.step}", call.round].append(call)
    return dict(found)


def _text_of(answer: Row | None) -> str | None:
    return None if answer is None else str(answer["text"])
