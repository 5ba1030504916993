"""Tests of plans with hosts: what is refused before anything runs, and which hosts a run works on."""

from pathlib import Path
from typing import Any

import pytest

from plan_adapter.loading import load_plan
from plan_adapter.model.canonical import plan_digest
from plan_adapter.model.errors import InvalidPlanError
from plan_adapter.model.inventory import HostGroup
from plan_adapter.model.options import Input
from plan_adapter.model.plan import ExecutionPlan, Step
from plan_adapter.store import dump_plan
from plan_adapter.text.formatting import format_plan
from plan_adapter.text.preview import Predictions
from plan_adapter.validation import bind_inputs, find_problems, lint, validate
from tests.validation.builders import TOOLS, plan, step

WEB = HostGroup(hosts={"web-1": {}, "web-2": {}, "web-3": {}})


def with_hosts(expression: str = "hosts('web')", **fields: Any) -> ExecutionPlan:
    groups = {"web": WEB, "db": HostGroup(hosts={"db-1": {"port": 2222}})}
    looped = step(
        "each", for_each=f"${{{{ {expression} }}}}", parameters={"value": "${{ item.name }} ${{ item.vars.x }}"}, tool_name="push"
    )
    return plan(looped, **{"hosts": groups, **fields})


def hosts_of(checked: ExecutionPlan, **inputs: Any) -> list[str]:
    """Return the names of the items of the step in a run with `inputs`."""
    bound = bind_inputs(validate(checked, TOOLS), inputs)
    items = Predictions(bound.validated, bound.inputs).of(bound.validated.steps["each"]).of(bound.validated.for_each["each"])
    assert isinstance(items, list)
    return [item["name"] if isinstance(item, dict) else item for item in items]  # pyright: ignore


@pytest.mark.parametrize(
    ("expression", "on", "names"),
    [
        ("hosts('web')", "all", ["web-1", "web-2", "web-3"]),
        ('hosts("web:!web-2")', "all", ["web-1", "web-3"]),
        ("hosts('web')", "web-3,web-1", ["web-1", "web-3"]),
        ("hosts('all')", "!web", ["db-1"]),
        ("hosts('web').filter(host, host.name != 'web-1')", "all", ["web-2", "web-3"]),
        ("[hosts('web')[1], hosts( 'db' )[0]]", "all", ["web-2", "db-1"]),
    ],
)
def test_a_list_has_the_hosts_of_its_pattern_on_which_the_run_works(expression: str, on: str, names: list[str]) -> None:
    assert hosts_of(with_hosts(expression), on=on) == names


def test_the_approval_covers_the_hosts_of_the_run() -> None:
    checked = validate(with_hosts(), TOOLS)
    every, some = (bind_inputs(checked, {"on": on}).approval_digest for on in ("all", "web-1"))
    more = validate(with_hosts(hosts={"web": HostGroup(hosts={**WEB.hosts, "web-4": {}})}), TOOLS)
    assert len({every, some, bind_inputs(more, {}).approval_digest}) == 3
    assert bind_inputs(checked).inputs == {"on": "all"}


@pytest.mark.parametrize(
    ("on", "message"),
    [
        ("web-4", "no host or group is called `web-4`"),
        ("db", "`db` leaves no host of `hosts('web')`"),
        ("web:!web", "`web:!web` leaves no host of the hosts of the plan"),
        ("", "no hosts are named"),
    ],
)
def test_a_run_without_hosts_is_refused(on: str, message: str) -> None:
    with pytest.raises(InvalidPlanError) as error:
        bind_inputs(validate(with_hosts(), TOOLS), {"on": on})
    (problem,) = error.value.problems
    assert (problem.code, problem.at, problem.message) == ("unknown-hosts", "inputs.on", message)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("hosts('wbe')", "`hosts('wbe')`: no host or group is called `wbe`"),
        ("hosts('web:!web')", "`hosts('web:!web')` gives no host"),
        ("hosts(inputs.on)", "there is no `hosts`"),
        ("hosts('web').map(host, host.nmae)", "`hosts('web')[*]` has no field `nmae`"),
        ("hosts('web')[0].nmae", "`hosts('web')[0]` has no field `nmae`"),
        ("hosts('web').name", "a list has no `name`"),
    ],
)
def test_a_mistake_in_an_expression_is_refused(expression: str, message: str) -> None:
    problems = find_problems(with_hosts(expression), TOOLS)
    assert [problem.at for problem in problems] == ["steps[0].for_each"]
    assert message in problems[0].message


def test_hosts_need_a_plan_that_has_some() -> None:
    (problem,) = find_problems(with_hosts(hosts={}), TOOLS)
    assert (problem.code, problem.at) == ("unknown-hosts", "steps[0].for_each")
    assert problem.message == "`hosts('web')`: there are no hosts here"


@pytest.mark.parametrize(
    ("groups", "at", "message"),
    [
        ({"web": WEB, "a": HostGroup(children=["b"]), "b": HostGroup(children=["a"])}, "hosts.a.children", "in a circle: `a` → `b` → `a`"),
        ({"web": WEB, "a": HostGroup(children=["wbe"])}, "hosts.a.children[0]", "no group is called `wbe`"),
        ({"web": WEB, "web-1": HostGroup()}, "hosts.web-1", "`web-1` is the name of a group and of a host"),
        ({"web": WEB, "a:b": HostGroup()}, "hosts.a:b", "'a:b' cannot be the name of a group"),
        ({"web": HostGroup(hosts={"::1": {}})}, "hosts.web.hosts.::1", "'::1' cannot be the name of a host"),
        ({"web": HostGroup(hosts={"a": {"ansible_password": "x"}})}, "hosts.web.hosts.a.ansible_password", "looks like a secret"),
        ({"web": HostGroup(hosts={"a": {}}, vars={"api_token": "x"})}, "hosts.web.vars.api_token", "looks like a secret"),
        ({"web": HostGroup(hosts={"a": {"port": "22"}})}, "hosts", "the port of `a` must be a whole number, not '22'"),
        ({"web": HostGroup(hosts={f"h{number}": {} for number in range(10_001)})}, "hosts", "there are 10001 hosts, and at most 10000"),
    ],
)
def test_hosts_that_cannot_be_used_are_refused(groups: dict[str, HostGroup], at: str, message: str) -> None:
    (problem,) = find_problems(with_hosts(hosts=groups), TOOLS)
    assert (problem.code, problem.at) == ("bad-hosts", at)
    assert message in problem.message


def test_two_names_of_one_host_and_ambiguous_variables_are_warnings() -> None:
    groups = {
        "web": HostGroup(
            hosts={"a": {"host": "10.0.0.1"}, "b": {"host": "10.0.0.1"}, "c": {"host": "10.0.0.1", "port": 23}}, vars={"x": 1}
        ),
        "eu": HostGroup(hosts={"a": {}}, vars={"x": 2}),
    }
    found = [(problem.severity, problem.at, problem.message.partition(",")[0]) for problem in lint(with_hosts(hosts=groups), TOOLS)]
    assert ("warning", "hosts", "`a` and `b` are the same host") in found
    assert ("warning", "hosts.web.vars.x", "`eu` and `web` give `a` different values of `x`") in found


def test_an_input_called_on_that_is_declared_stays() -> None:
    own = with_hosts(inputs={"on": Input(default="web-1", enum=["web-1", "web-2"])})
    assert hosts_of(own) == ["web-1"]
    assert own.to_document()["inputs"] == {"on": {"default": "web-1", "enum": ["web-1", "web-2"]}}
    (problem,) = find_problems(with_hosts(inputs={"on": Input(type="array")}), TOOLS)
    assert (problem.code, problem.at) == ("bad-hosts", "inputs.on.type")


def test_an_inventory_that_was_not_read_is_refused() -> None:
    problems = find_problems(with_hosts(hosts="inventory.ini"), TOOLS)
    assert [(problem.code, problem.at) for problem in problems][:1] == [("bad-hosts", "hosts")]


# Plans that another plan runs


def around(inner: ExecutionPlan, **fields: Any) -> ExecutionPlan:
    """Return a plan with other hosts whose step `part` runs `inner`, with `fields` of the step."""
    outer = step("each", for_each="${{ hosts('gw') }}", parameters={"value": "${{ item.name }}"})
    part = Step(id="part", plan="store:inner@1", pinned=inner, **fields)
    return plan(outer, part, hosts={"gw": HostGroup(hosts={"gw-1": {}, "gw-2": {}})}, inputs={"where": Input(default="web-1")})


def hosts_inside(checked: ExecutionPlan, **inputs: Any) -> object:
    """Return the predicted items of the step `part.each` in a run with `inputs`."""
    bound = bind_inputs(validate(checked, TOOLS), inputs)
    return Predictions(bound.validated, bound.inputs).of(bound.validated.steps["part.each"]).of(bound.validated.for_each["part.each"])


def names_in(items: object) -> list[str]:
    assert isinstance(items, list)
    return [str(item["name"]) for item in items]  # pyright: ignore


def test_a_sub_plan_has_hosts_of_its_own() -> None:
    checked = around(with_hosts())
    assert find_problems(checked, TOOLS) == []
    assert names_in(hosts_inside(checked, on="gw-2")) == ["web-1", "web-2", "web-3"]  # `on` is about the plan around it
    assert names_in(hosts_inside(around(with_hosts(), inputs={"on": "web-3,web-1"}))) == ["web-1", "web-3"]
    assert names_in(hosts_inside(around(with_hosts(), inputs={"on": "${{ inputs.where }}"}))) == ["web-1"]


def test_the_hosts_of_both_plans_are_shown() -> None:
    shown = format_plan(around(with_hosts()))
    assert "- hosts: `gw` (gw-1, gw-2)" in shown
    assert "   - hosts: `web` (web-1, web-2, web-3), `db` (db-1)" in shown


def test_the_digest_of_the_plan_around_covers_the_hosts() -> None:
    one, other = (plan_digest(around(with_hosts(hosts={"web": group}))) for group in (WEB, HostGroup(hosts={"web-1": {}})))
    assert one != other


def test_each_plan_sees_only_its_own_hosts() -> None:
    (inner,) = find_problems(around(with_hosts("hosts('gw')")), TOOLS)
    assert (inner.code, inner.at) == ("unknown-hosts", "steps[1].pinned.steps[0].for_each")
    none = around(with_hosts(hosts={}))
    assert [(problem.code, problem.at) for problem in find_problems(none, TOOLS)] == [
        ("unknown-hosts", "steps[1].pinned.steps[0].for_each")
    ]


def test_the_hosts_that_a_sub_plan_works_on_must_exist() -> None:
    (problem,) = find_problems(around(with_hosts(), inputs={"on": "gw-1"}), TOOLS)
    assert (problem.code, problem.at) == ("unknown-hosts", "steps[1].inputs.on")
    for given, message in (("web-9", "no host or group is called `web-9`"), ("db", "`db` leaves no host of `hosts('web')`")):
        with pytest.raises(InvalidPlanError) as error:
            bind_inputs(validate(around(with_hosts(), inputs={"on": "${{ inputs.where }}"}), TOOLS), {"where": given})
        (problem,) = error.value.problems
        assert (problem.code, problem.at, problem.message) == ("unknown-hosts", "steps[1].inputs.on", message)
    skipped = around(with_hosts(), inputs={"on": "${{ inputs.where }}"}, when="${{ inputs.where != 'web-9' }}")
    bind_inputs(validate(skipped, TOOLS), {"where": "web-9"})


def test_the_inventory_of_a_sub_plan_is_read_beside_its_own_document(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "hosts.ini").write_text("[web]\nweb-1\nweb-2\n", encoding="utf-8")
    inner = "description: Inner\nhosts: hosts.ini\nsteps:\n  - {id: each, tool_name: push, for_each: \"${{ hosts('web') }}\"}\n"
    (tmp_path / "parts" / "inner.yaml").write_text(inner, encoding="utf-8")
    (tmp_path / "outer.yaml").write_text("description: Outer\nsteps: [{id: part, plan: parts/inner.yaml}]\n", encoding="utf-8")
    loaded = load_plan(tmp_path / "outer.yaml")
    assert names_in(hosts_inside(loaded)) == ["web-1", "web-2"]
    (tmp_path / "parts" / "hosts.ini").unlink()
    assert load_plan(dump_plan(loaded)) == loaded  # it needs no file any more
    with pytest.raises(InvalidPlanError) as error:
        load_plan(tmp_path / "outer.yaml")
    assert "hosts.ini" in str(error.value)
