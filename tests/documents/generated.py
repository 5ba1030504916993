"""Plans as hypothesis makes them: every field, any text that a document may carry, any JSON in the author's own fields."""

from hypothesis import strategies as st

from plan_adapter.plan import ApprovalPolicy, Concurrency, ExecutionOptions, ExecutionPlan, Input, Rollback, Step

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


rollbacks = st.builds(Rollback, tool_name=ids, parameters=mappings)
steps = st.builds(
    Step,
    id=ids,
    tool_name=optional(texts),
    goal=optional(texts),
    description=texts,
    for_each=optional(texts),
    parameters=mappings,
    input=texts,
    depends_on=st.lists(ids, max_size=3),
    when=optional(texts),
    done_when=optional(texts),
    max_retries=st.integers(0, 5),
    retry_delay_ms=milliseconds,
    retry_backoff=st.floats(1, 10),
    retry_jitter=st.floats(0, 1),
    timeout_ms=optional(milliseconds),
    effect=st.sampled_from([None, "read", "idempotent_write", "write"]),
    isolation=isolations,
    on_error=st.sampled_from([None, "stop", "continue"]),
    requires_approval=st.booleans(),
    rollback=optional(rollbacks),
    tools=st.lists(texts, max_size=2),
    max_rounds=optional(st.integers(1, 50)),
    metadata=mappings,
)
inputs = st.builds(
    Input,
    type=st.sampled_from(["string", "integer", "number", "boolean", "array", "object"]),
    description=texts,
    default=values,
    enum=optional(st.lists(values, max_size=3)),
    pattern=optional(texts),
    min_length=optional(milliseconds),
    minimum=optional(floats),
)
options = st.builds(
    ExecutionOptions,
    require_approval=st.booleans(),
    allow_parallel=st.booleans(),
    max_parallel_steps=st.integers(1, 20),
    stop_on_error=st.booleans(),
    total_timeout_ms=milliseconds,
)


def _plan(fields: dict[str, object]) -> ExecutionPlan:
    return ExecutionPlan(**{key: value for key, value in fields.items() if key != "id" or value})  # type: ignore[arg-type]


plans = st.builds(
    _plan,
    st.fixed_dictionaries(
        {
            "id": st.just("") | ids,
            "name": texts,
            "description": texts,
            "inputs": st.dictionaries(ids.map(lambda name: name.replace("-", "_")), inputs, max_size=2),
            "options": options,
            "steps": st.lists(steps, max_size=3),
            "finally_": st.lists(steps, max_size=1),
            "concurrency": optional(st.builds(Concurrency, key=texts)),
            "approval": optional(st.builds(ApprovalPolicy, approvers=st.lists(texts, max_size=2), release=st.booleans())),
            "isolation": isolations,
            "outputs": mappings,
            "metadata": mappings,
        }
    ),
)
