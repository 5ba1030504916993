"""Hypothesis strategies for plans: every field, any text a document can hold, any JSON in the author's own fields."""

from typing import Any

from hypothesis import strategies as st
from pydantic import BaseModel, JsonValue

from plan_adapter.model.inventory import HostGroup
from plan_adapter.model.language import LANGUAGES
from plan_adapter.model.options import ApprovalPolicy, Concurrency, Escalation, ExecutionOptions, Input, Question, RunWindow, Trigger
from plan_adapter.model.plan import ExecutionPlan, Rollback, Step

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30) | st.sampled_from(
    [
        "no",
        "0o17",
        "0x1F",
        "1e3",
        "~",
        "",
        " a",
        "a ",
        "a: b",
        "# c",
        "${{ inputs.x }}",
        "第一行\n第二行",
        "a\n\n b\n",
        "\na",
        "a\t\nb",
        "a\r\nb",
        "|",
        "12:30",
        "=",
        "<<",
    ]
)
keys = texts.filter(lambda text: not text.startswith("__prefect"))
floats = st.floats(allow_nan=False, allow_infinity=False).filter(lambda number: not 2**53 - 1 < abs(number) < 1e21)
numbers = st.integers(-(2**53) + 1, 2**53 - 1) | floats
scalars = st.none() | st.booleans() | numbers | texts
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=8)
mappings = st.dictionaries(keys, values, max_size=3)
ids = st.from_regex(r"[A-Za-z_][A-Za-z0-9_-]{0,10}", fullmatch=True)
milliseconds = st.integers(0, 10**6)
isolations = st.sampled_from([None, "thread", "process"])


def optional(strategy: st.SearchStrategy) -> st.SearchStrategy:
    return st.none() | strategy


names = st.lists(texts, max_size=2)
BY_TYPE: dict[Any, st.SearchStrategy] = {
    str: texts,
    str | None: optional(texts),
    bool: st.booleans(),
    list[str]: names,
    dict[str, JsonValue]: mappings,
}


def every_field(model: type[BaseModel], **strategies: st.SearchStrategy) -> st.SearchStrategy:
    """Instances of `model`. A field without a strategy and of another type than `BY_TYPE` is an error, so that a new field is tested."""
    simple = {name: info.annotation for name, info in model.model_fields.items() if name not in strategies}
    unknown = {name for name, kind in simple.items() if kind not in BY_TYPE} | (strategies.keys() - model.model_fields.keys())
    assert not unknown, f"{model.__name__} has no strategy here, or no field, for: {', '.join(sorted(unknown))}"
    whole = {name: BY_TYPE[kind] for name, kind in simple.items()} | strategies
    return st.fixed_dictionaries(whole).map(lambda fields: model(**{key: value for key, value in fields.items() if key != "id" or value}))


types_of_members = st.sampled_from(["string", "integer", "number", "boolean", "array", "object", "date", "date-time", "duration"])
types = types_of_members | st.just("secret")
effects = st.sampled_from(["read", "idempotent_write", "write"])
tags = st.lists(ids, max_size=2)
rollbacks = every_field(Rollback, tool_name=ids, parameters=mappings)
inputs = every_field(
    Input,
    type=types,
    title=texts,
    description=texts,
    default=values,
    example=values,
    enum=optional(st.lists(values, max_size=3)),
    pattern=optional(texts),
    min_length=optional(milliseconds),
    max_length=optional(milliseconds),
    minimum=optional(floats),
    maximum=optional(floats),
    items=optional(types_of_members),
    variable=optional(ids),
)
names_of_inputs = ids.map(lambda name: name.replace("-", "_"))
questions = every_field(Question, question=texts, fields=st.dictionaries(names_of_inputs, inputs, max_size=2))
step_fields: dict[str, st.SearchStrategy] = {
    "id": ids,
    "ask": optional(questions),
    "expires": st.sampled_from([None, "reject", "skip", "default"]),
    "label": optional(ids),
    "tags": tags,
    "depends_on": st.lists(ids, max_size=3),
    "creates_secrets": st.lists(ids, max_size=2),
    "max_retries": st.integers(0, 5),
    "retry_delay_ms": milliseconds,
    "retry_backoff": st.floats(1, 10),
    "retry_jitter": st.floats(0, 1),
    "timeout_ms": optional(milliseconds),
    "effect": optional(effects),
    "isolation": isolations,
    "runner": st.sampled_from([None, "dask"]),
    "on_error": st.sampled_from([None, "stop", "continue"]),
    "requires_approval": st.booleans() | st.just("each"),
    "rollback": optional(rollbacks),
    "max_rounds": optional(st.integers(1, 50)),
    "batch": optional(st.integers(1, 9)),
    "max_failures": st.integers(0, 9) | st.sampled_from(["0%", "20%", "100%"]),
}
inner_steps = every_field(Step, **step_fields, steps=st.just([]), pinned=st.none())
windows = every_field(
    RunWindow,
    cron=texts,
    duration_ms=st.integers(60_000, 10**8),
    time_zone=texts,
    outside=st.sampled_from(["wait", "refuse"]),
)
options = every_field(
    ExecutionOptions,
    require_approval=st.booleans(),
    auto_approve=st.booleans(),
    approval_timeout_ms=milliseconds,
    allow_parallel=st.booleans(),
    max_parallel_steps=st.integers(1, 20),
    stop_on_error=st.booleans(),
    continue_on_error=st.booleans(),
    step_timeout_ms=milliseconds,
    total_timeout_ms=milliseconds,
    finally_timeout_ms=milliseconds,
    run_window=optional(windows),
)
approvals = every_field(
    ApprovalPolicy,
    approvers=names,
    operators=names,
    quorum=st.integers(1, 3),
    self_approval=st.booleans(),
    author_approval=st.booleans(),
    escalate=optional(every_field(Escalation, after_ms=st.integers(1000, 10**9), to=st.lists(texts, min_size=1, max_size=2))),
    delegate=st.booleans(),
    known_by=st.lists(st.sampled_from(["ssh_signature", "totp", "sign_in", "proxy", "slack", "os_user", "form", "unverified"]), max_size=2),
    effects=st.lists(effects, max_size=2),
    expires=st.sampled_from(["reject", "skip"]),
    release=st.booleans(),
    remind_after_ms=milliseconds,
    always_execute=names,
)
groups_of_hosts = every_field(HostGroup, hosts=st.dictionaries(texts, mappings, max_size=2), children=names, vars=mappings)
triggers = every_field(
    Trigger,
    event=st.sampled_from(["alert.firing", "警报.*", "*"]),
    resource=st.dictionaries(texts, texts, max_size=2),
    when=optional(st.just("${{ event.payload.n > 1 }}")),
    inputs=mappings,
    fingerprint=optional(texts.filter(bool)),
    cooldown_ms=milliseconds,
)
plan_fields: dict[str, st.SearchStrategy] = {
    "version": st.just(1),
    "id": st.just("") | ids,
    "name": texts,
    "description": texts,
    "inputs": st.dictionaries(names_of_inputs, inputs, max_size=2),
    "hosts": st.dictionaries(texts, groups_of_hosts, max_size=2),
    "options": options,
    "concurrency": optional(every_field(Concurrency, key=texts, when_busy=st.sampled_from(["refuse", "queue", "cancel_older"]))),
    "approval": optional(approvals),
    "triggers": st.lists(triggers, max_size=2),
    "isolation": isolations,
    "permissions": tags | st.sampled_from(["${{ inputs.a ? ['甲'] : [] }}", "${{ [inputs.b, 'net'] }}"]),
    "on_failure": optional(st.just("replan")),
    "run_name": optional(texts.filter(bool)),
    "language": optional(st.sampled_from(LANGUAGES)),
    "tags": tags,
    "outputs": mappings,
    "metadata": mappings,
}
sub_plans = every_field(ExecutionPlan, **plan_fields, steps=st.lists(inner_steps, max_size=2), finally_=st.just([]))
pinned = st.deferred(lambda: sub_plans)  # what it shows of itself stays short
steps = every_field(Step, **step_fields, steps=st.just([]) | st.lists(inner_steps, max_size=2), pinned=optional(pinned))
plans = every_field(ExecutionPlan, **plan_fields, steps=st.lists(steps, max_size=3), finally_=st.lists(steps, max_size=1))
