"""Tests of expressions that would exhaust the memory, and of the process that evaluates them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from plan_adapter.expressions import Declarations, Variables, bounded, compile_template
from plan_adapter.model.errors import ExpressionError
from plan_adapter.plans import Input
from tests.attacks.values import exact

LOOP = "[" + ",".join("0" * 60) + "]"
BIG = {"s": "x" * 60_000, "o": [{"id": number, "name": f"n{number}"} for number in range(500)]}
MEMORY: dict[str, str] = {
    "a loop in a loop": f"size({LOOP}.map(a, {LOOP}.map(b, inputs.s + 'y'))) > 1",
    "a loop that only looks": f"{LOOP}.exists(a, {LOOP}.exists(b, inputs.s + 'y' == 'z' + string(a)))",
    "a loop that reverses": f"{LOOP}.exists(a, {LOOP}.exists(b, inputs.s.reverse() == 'z'))",
    "loops in a chain": f"size({LOOP}.map(a, inputs.s + inputs.s).map(b, b + b).map(c, c + c + c + c).map(d, d + d + d + d)) > 1",
    "all for each": f"size({LOOP}.map(a, {LOOP}.map(b, inputs.o))) > 1 && size(string(size(inputs.s))) > 9",
    "replace nothing": "size(inputs.s.replace('', inputs.s)) > 1",
    "join": f"size({LOOP}.map(a, inputs.s).join(inputs.s + inputs.s).replace('', 'yyyyyyyyyyyyyyyyyyyyyyyyyyyyyy')) > 1",
    "format": f"{LOOP}.exists(a, {LOOP}.exists(b, '%s%s'.format([inputs.s, inputs.s]) == 'z'))",
    "padding": f"{LOOP}.exists(a, {LOOP}.exists(b, '{'%.1000f' * 60}'.format([{', '.join(['1e308'] * 60)}]) == 'z'))",
    "split": "size(inputs.s.split('').map(a, inputs.s)) > 1",
    "plus": f"size({' + '.join(['inputs.s'] * 3000)}) > 1",
    "a list of the same": f"size([{', '.join(['inputs.s'] * 3000)}]) > 1",
    "concatenated literals": f"{LOOP}.exists(a, {LOOP}.exists(b, [{','.join('0' * 20_000)}] == [a, b]))",
}

MEASURE = """
import json, resource, sys
from plan_adapter.model.errors import ExpressionError
from plan_adapter.expressions import Declarations, Variables, compile_template
from plan_adapter.model.options import Input

source, inputs = json.load(sys.stdin)
declared = Declarations(frozenset(), {"s": Input(), "o": Input(type="array")})
template, problems = compile_template("${{ true }}", declared, at="", expect="bool")
template.resolve(Variables(steps={}, inputs=inputs))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
template, problems = compile_template("${{ " + source + " }}", declared, at="", expect="bool")
said = "; ".join(problem.message for problem in problems)
try:
    said = said or str(template.resolve(Variables(steps={}, inputs=inputs)))
except ExpressionError as error:
    said = str(error)
from plan_adapter.expressions import bounded
bounded.evaluator().close()
here = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(json.dumps([said, here, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss]))
"""


BRIEF = ("a loop in a loop", "all for each", "replace nothing", "plus")


@pytest.mark.parametrize("name", [name if name in BRIEF else pytest.param(name, marks=pytest.mark.thorough) for name in MEMORY])
def test_no_expression_takes_more_memory_than_its_limit(name: str) -> None:
    asked = json.dumps([MEMORY[name], BIG])
    process = subprocess.run([sys.executable, "-c", MEASURE], input=asked, capture_output=True, text=True, check=True)
    said, here_kb, child_kb = json.loads(process.stdout)
    assert here_kb < 100 * 1024, said
    assert child_kb < 100 * 1024 + bounded.MAX_MEMORY_BYTES // 1024, said
    assert "let a tool do that" in said or said in ("True", "False") or "nests deeper" in said


def test_an_expression_over_a_large_result_is_evaluated() -> None:
    variables = Variables(steps={}, inputs=BIG)
    declared = Declarations(frozenset(), {"s": Input(), "o": Input(type="array")})
    for source, value in (
        ("inputs.o.map(r, r.name)", [f"n{number}" for number in range(500)]),
        ("inputs.o.filter(r, r.id >= 499)[0]", {"id": 499, "name": "n499"}),
        ("inputs.o.map(r, double(r.id) / 2.0).filter(x, x > 249.0)", [249.5]),
        ("inputs.s.replace('x', 'y').startsWith('yyy')", True),
        ("inputs.o.map(r, r.name).join(', ').size()", sum(len(f"n{number}, ") for number in range(500)) - 2),
    ):
        template, problems = compile_template(f"${{{{ {source} }}}}", declared, at="")
        assert not problems
        assert bounded.may_grow(template.texts[f"${{{{ {source} }}}}"][0].code or "", 60_000)  # type: ignore[union-attr]
        assert exact(template.resolve(variables)) == exact(value)


def test_errors_of_the_evaluating_process_are_reported_unchanged() -> None:
    variables = Variables(steps={}, inputs=BIG)
    declared = Declarations(frozenset(), {"s": Input(), "o": Input(type="array")})
    for source, said in (
        ("inputs.o.map(r, r.missing)", "missing"),
        ("inputs.o.map(r, r.id / 0)", "divide by zero"),
        ("inputs.o.map(r, 1.0 / 0.0)", "gives inf, which is not JSON"),
        ("inputs.o.map(r, {r.id: 1})", "gives a key that is not text, which is not JSON"),
        ("inputs.o.map(a, inputs.o.map(b, 1))", "more than 10,000 items"),
    ):
        template, problems = compile_template(f"${{{{ {source} }}}}", declared, at="")
        assert not problems
        with pytest.raises(ExpressionError, match=said):
            template.resolve(variables)


def test_the_evaluator_works_after_an_expression_exceeded_its_memory() -> None:
    evaluator = bounded.Evaluator()
    values = {"s": BIG["s"]}
    try:
        for _ in range(2):
            assert evaluator.evaluate("s.replace('', s)", [["s", "string"]], values) == ("cel", bounded.TOO_MUCH_MEMORY)
            assert evaluator.evaluate("size(s + s)", [["s", "string"]], values) == ("value", 120_000)
    finally:
        evaluator.close()


def test_the_evaluating_process_inherits_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "users-own-business")
    monkeypatch.setenv("PLAN_ADAPTER_SECRET_TOKEN", "canary-of-ours")
    evaluator = bounded.Evaluator()
    try:
        assert evaluator.evaluate("1 + 1", [], {}) == ("value", 2)
        assert evaluator._process is not None
        environment = Path(f"/proc/{evaluator._process.pid}/environ").read_text()
    finally:
        evaluator.close()
    assert "canary" not in environment
    assert "users-own" not in environment
