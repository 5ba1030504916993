"""Tests of the hosts of a plan: which of them a pattern gives, in which order, and with which variables."""

import pytest

from plan_adapter.model.inventory import HostGroup, HostLists, Inventory, PatternError

INVENTORY = Inventory(
    {
        "web": HostGroup(hosts={"web-10": {}, "web-2": {"port": 2222, "weight": 5}, "web-1": {}}, vars={"user": "deploy", "role": "web"}),
        "db": HostGroup(hosts={"数据库": {"ansible_host": "10.0.0.9"}}, vars={"role": "db", "ansible_port": 22}),
        "prod": HostGroup(children=["web", "db"], vars={"role": "any", "region": "eu", "jump": "gate"}),
        "blue": HostGroup(hosts={"web-1": {}, "web-2": {}}),
        "all": HostGroup(hosts={"spare": {}}, vars={"region": "us", "zone": 1}),
    }
)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("all", "spare web-1 web-2 web-10 数据库"),
        ("web", "web-1 web-2 web-10"),
        ("prod", "web-1 web-2 web-10 数据库"),
        ("web-10,web-2", "web-2 web-10"),
        ("web:!web-2", "web-1 web-10"),
        ("prod:&blue", "web-1 web-2"),
        ("prod:&blue:!web-1", "web-2"),
        ("!prod", "spare"),
        ("web-?", "web-1 web-2"),
        ("web-[2-9]", "web-2"),
        ("*-1*, 数据库", "web-1 web-10 数据库"),
        ("b*", "web-1 web-2"),
        ("web:&db", ""),
    ],
)
def test_a_pattern_gives_hosts_in_the_order_of_their_names(pattern: str, names: str) -> None:
    assert " ".join(INVENTORY.select(pattern)) == names


@pytest.mark.parametrize(
    ("pattern", "message", "hint"),
    [
        ("web-11", "no host or group is called `web-11`", "did you mean `web-1"),
        ("web:!wbe", "no host or group is called `wbe`", "did you mean `web`?"),
        ("x*", "no host or group is called `x*`", "`web`"),
        ("", "no hosts are named", "name hosts or groups, such as `all`"),
        (" , ", "no hosts are named", "name hosts or groups"),
        ("!", "no host or group is called ``", ""),
    ],
)
def test_an_unknown_name_in_a_pattern_is_refused(pattern: str, message: str, hint: str) -> None:
    with pytest.raises(PatternError) as error:
        INVENTORY.select(pattern)
    assert str(error.value) == message
    assert hint in error.value.hint


def test_the_nearest_variable_counts_and_the_connection_is_named_alike() -> None:
    hosts = INVENTORY.hosts
    assert hosts["web-2"] == {
        "name": "web-2",
        "host": "web-2",
        "user": "deploy",
        "port": 2222,
        "jump": "gate",
        "groups": ["blue", "prod", "web"],
        "vars": {"region": "eu", "zone": 1, "role": "web", "weight": 5},
    }
    assert (hosts["数据库"]["host"], hosts["数据库"]["port"], hosts["数据库"]["vars"]) == (
        "10.0.0.9",
        22,
        {"region": "eu", "zone": 1, "role": "db"},
    )
    assert (hosts["spare"]["groups"], hosts["spare"]["vars"]) == ([], {"region": "us", "zone": 1})


def test_a_run_works_only_on_its_hosts() -> None:
    lists = HostLists(INVENTORY, "web:!web-1")
    assert [host["name"] for host in lists["blue"]] == ["web-2"]  # pyright: ignore
    assert lists["db"] == []
    with pytest.raises(KeyError):
        lists["nobody"]


def test_groups_in_a_circle_are_found_and_end_nothing() -> None:
    groups = {"a": HostGroup(children=["b"], hosts={"one": {}}), "b": HostGroup(children=["c"]), "c": HostGroup(children=["b", "gone"])}
    inventory = Inventory(groups)
    assert inventory.find_loop() == ["b", "c", "b"]
    assert inventory.select("a") == ["one"]
    assert INVENTORY.find_loop() == []


def test_different_values_of_groups_beside_each_other_are_found() -> None:
    groups = {
        "eu": HostGroup(hosts={"one": {}, "two": {"ntp": "c"}}, vars={"ntp": "a", "tier": 1}),
        "web": HostGroup(hosts={"one": {}, "two": {}}, vars={"ntp": "b", "tier": 1}),
        "all": HostGroup(vars={"ntp": "d"}),
    }
    assert [*Inventory(groups).conflicts()] == [("one", "ntp", "eu", "web")]
