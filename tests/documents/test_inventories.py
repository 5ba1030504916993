"""Tests of hosts as people write them: lists, nested groups and ranges, and inventories of Ansible in YAML and INI."""

from pathlib import Path

import pytest

from plan_adapter.documents import read_document, read_inventory
from plan_adapter.loading import load_plan
from plan_adapter.model.canonical import plan_digest
from plan_adapter.model.errors import InvalidPlanError
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.validation import find_problems

STEPS = """
steps:
  - {id: a, description: d, for_each: "${{ hosts('all') }}", tool_name: read_file, parameters: {path: "${{ item.name }}"}}
"""

YAML = """
all:
  hosts: {mail: }
  vars: &vars {ansible_user: deploy}
  children:
    web:
      hosts:
        web-[01:03]: {ansible_port: 2222}
        node-[a:c:2]:
      vars: *vars
    prod:
      children: {web: , db: {hosts: {数据库: {ansible_host: 10.0.0.9}}}}
"""

INI = """
# the same hosts
mail

[web]
web-[01:03]:2222   # on another port
node-[a:c:2]

[web:vars]
ansible_user = deploy
motd="a # b"
is_new=True

[db]
数据库 ansible_host=10.0.0.9 ansible_port=22 note='two words'  # and a comment

[prod:children]
web
db
"""


def plan_of(hosts: str) -> ExecutionPlan:
    plan, problems = read_document(f"description: d\nhosts: {hosts}{STEPS}")
    assert plan is not None, problems
    return plan


def names(plan: ExecutionPlan, pattern: str = "all") -> list[str]:
    assert plan.inventory is not None
    return plan.inventory.select(pattern)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("[b, a]", {"all": ["a", "b"]}),
        ("{web: [b, a], db: }", {"web": ["a", "b"], "db": []}),
        ("{web: {hosts: [b, a]}}", {"web": ["a", "b"]}),
        ("{web: {hosts: {b: , a: {port: 1}}}}", {"web": ["a", "b"]}),
        ("{web: {hosts: [a], children: [db]}, db: [b]}", {"web": ["a", "b"], "db": ["b"]}),
        ("{web: {children: {db: [b], x: {children: {y: [c]}}}}, y: [d]}", {"web": ["b", "c", "d"], "db": ["b"], "x": ["c", "d"]}),
        ('{web: ["n[08:11]", "x[1:5:2]-[a:b]"]}', {"web": ["n08", "n09", "n10", "n11", "x1-a", "x1-b", "x3-a", "x3-b", "x5-a", "x5-b"]}),
    ],
)
def test_short_forms_name_the_same_hosts(written: str, expected: dict[str, list[str]]) -> None:
    plan = plan_of(written)
    assert {group: names(plan, group) for group in expected} == expected
    assert find_problems(plan, ToolRegistry.with_builtins()) == []
    again = ExecutionPlan.model_validate(plan.to_document())
    assert (again.hosts, plan_digest(again)) == (plan.hosts, plan_digest(plan))
    assert "inputs" not in plan.to_document()


def test_inventories_of_ansible_are_read(tmp_path: Path) -> None:
    (tmp_path / "hosts.yaml").write_text(YAML, encoding="utf-8")
    (tmp_path / "hosts").write_text(INI, encoding="utf-8")
    for file in ("hosts.yaml", "hosts"):
        (tmp_path / "plan.yaml").write_text(f"description: d\nhosts: {file}{STEPS}", encoding="utf-8")
        plan = load_plan(tmp_path / "plan.yaml")
        assert names(plan, "web") == ["node-a", "node-c", "web-01", "web-02", "web-03"]
        assert names(plan, "prod:!web") == ["数据库"]
        assert "mail" in names(plan)
        assert plan.inventory is not None
        first, last = plan.inventory.hosts["web-01"], plan.inventory.hosts["数据库"]
        assert (first["port"], first["user"], last["host"]) == (2222, "deploy", "10.0.0.9")
    assert (first["vars"], last["vars"]) == ({"motd": "a # b", "is_new": True}, {"note": "two words"})


def test_the_digest_covers_what_the_inventory_says(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text(f"description: d\nhosts: hosts.ini{STEPS}", encoding="utf-8")
    digests = set[str]()
    for text in ("[web]\na\n", "[web]\na\n\n# nothing\n", "[web]\na\nb\n", "[web]\na x=1\n"):
        (tmp_path / "hosts.ini").write_text(text, encoding="utf-8")
        digests.add(plan_digest(load_plan(tmp_path / "plan.yaml")))
    assert len(digests) == 3


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("[web\na", 1, "this is no heading"),
        ("[web:hots]\na", 1, "this is no heading"),
        ("[web:vars]\na", 2, "a variable is written as `name=value`"),
        ("[web]\na b", 2, "a host is followed by variables"),
        ("[web]\na b='c", 2, "this is no host with variables: No closing quotation"),
        ("[web]\na\na", 3, "`a` stands twice in `web`"),
    ],
)
def test_an_inventory_that_cannot_be_read_says_where(text: str, line: int, message: str, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text(text, encoding="utf-8")
    groups, problems = read_inventory(tmp_path / "hosts")
    assert (groups, [(problem.line, problem.file) for problem in problems]) == ({}, [(line, str(tmp_path / "hosts"))])
    assert message in problems[0].message


def test_every_problem_of_a_file_is_reported_with_its_line(tmp_path: Path) -> None:
    text = "web:\n  hosts:\n    a:\n    b: [1]\n  var: {x: 1}\ndb: [c, d, c]\nx: 1\n"
    (tmp_path / "hosts.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "plan.yaml").write_text(f"description: d\nhosts: hosts.yaml{STEPS}", encoding="utf-8")
    with pytest.raises(InvalidPlanError) as error:
        load_plan(tmp_path / "plan.yaml")
    found = [(problem.code, problem.line, Path(problem.file or "").name) for problem in error.value.problems]
    expected = [("wrong-type", 4), ("unknown-field", 5), ("bad-hosts", 6), ("wrong-type", 7)]
    assert found == [(code, line, "hosts.yaml") for code, line in expected]


def test_a_missing_inventory_is_one_clear_problem(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text(f"description: d\nhosts: no.yaml{STEPS}", encoding="utf-8")
    with pytest.raises(InvalidPlanError) as error:
        load_plan(tmp_path / "plan.yaml")
    (problem,) = error.value.problems
    assert (problem.at, problem.message, problem.file) == ("hosts", "`no.yaml`: the file does not exist", str(tmp_path / "no.yaml"))
