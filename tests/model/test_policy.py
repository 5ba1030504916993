"""Tests of policy documents: strict reading, all problems at once, and how a policy and the settings combine."""

import json
from pathlib import Path
from typing import Any

import pytest

from plan_adapter.gates.policy import EffectivePolicy, Policy, effective_policy, intersect, policy_of, read_policy
from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import InvalidPlanError

FULL_POLICY = """\
# 发布策略
approvers: [sre, 小明]
operators: [ana, run-plan/nightly]
groups:
  sre: [bo, 李雷]
known_by: [ssh_signature, totp]
self_approval: false
gate_effects: [write]
allow_unapproved: false
allowed_signers: |
  # who may sign
  ana ssh-ed25519 AAAA

  "bo,li" namespaces="prefect-plan-adapter" ssh-ed25519 AAAB a comment
"""


def problems(tmp_path: Path, text: str, name: str = "policy.yaml") -> list[tuple[str, str, int | None]]:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(InvalidPlanError) as error:
        read_policy(tmp_path / name)
    assert all(problem.file == str(tmp_path / name) for problem in error.value.problems)
    return [(problem.code, problem.at, problem.line) for problem in error.value.problems]


def test_a_policy_is_read_from_yaml_and_json_alike(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(FULL_POLICY, encoding="utf-8")
    read = read_policy(tmp_path / "policy.yaml")
    assert (read.approvers, read.groups, read.self_approval) == (["sre", "小明"], {"sre": ["bo", "李雷"]}, False)
    assert len(read.allowed_signers) == 4
    (tmp_path / "policy.json").write_text(json.dumps(read.to_document(), ensure_ascii=False), encoding="utf-8")
    assert read_policy(tmp_path / "policy.json") == read


def test_every_problem_of_a_policy_is_reported_at_once_with_its_place(tmp_path: Path) -> None:
    text = """\
approver: [ana]
operators: [ana, "bo "]
groups: {sre: bo}
known_by: [ssh]
self_approval: "no"
gate_effects: [writes]
allowed_signers: [5]
"""
    assert problems(tmp_path, text) == [
        ("unknown-field", "approver", 1),
        ("wrong-type", "groups.sre", 3),
        ("bad-value", "known_by[0]", 4),
        ("wrong-type", "self_approval", 5),
        ("bad-value", "gate_effects[0]", 6),
        ("wrong-type", "allowed_signers[0]", 7),
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('approvers: ["", ana]', ("bad-approver", "approvers[0]", 1)),
        ('operators: [" ana"]', ("bad-operator", "operators[0]", 1)),
        ('operators: ["a\\u200bna"]', ("bad-operator", "operators[0]", 1)),
        ('groups: {" sre": [ana]}', ("bad-value", "groups. sre", 1)),
        ("groups:\n  sre: [ana, '']", ("bad-value", "groups.sre[1]", 2)),
        ("allowed_signers: |\n  ana ssh-ed25519\n", ("bad-value", "allowed_signers[0]", 1)),
        ("allowed_signers: /etc/signers", ("bad-value", "allowed_signers[0]", 1)),
        ("approvers:\nself_approval: true", ("wrong-type", "approvers", 1)),
        ("- ana", ("wrong-type", "", 1)),
        ("", ("syntax", "", 1)),
        ("approvers: &a [ana]\noperators: *a", ("anchor", "approvers", 1)),
    ],
    ids=[
        "empty name",
        "white space",
        "invisible",
        "group name",
        "member",
        "signer without a key",
        "a path",
        "null",
        "a list",
        "nothing",
        "anchor",
    ],
)
def test_invalid_values_in_a_policy_are_refused(tmp_path: Path, text: str, found: tuple[str, str, int]) -> None:
    assert found in problems(tmp_path, text)


def test_a_mistake_is_named_with_how_to_correct_it() -> None:
    document: dict[str, Any] = {
        "approvers": ["ana", " " + "x" * 90],
        "operators": ["bo", "ana\u200b"],
        "groups": {"sre ": ["bo"], "all": ["bo", ""]},
        "allowed_signers": ["ana ssh-ed25519 AAAA", "# a comment", "", "  ", "ana ssh-ed25519", "ana ssh-ed25519 AAAA\x07"],
    }
    with pytest.raises(InvalidPlanError) as error:
        policy_of(document)
    of_names = "write the name without white space around it and without invisible characters"
    of_signers = "write a line for each key: `ana ssh-ed25519 AAAA…`"
    assert [(problem.code, problem.at, problem.message, problem.hint) for problem in error.value.problems] == [
        ("bad-approver", "approvers[1]", f"' {'x' * 79}' cannot be a name", of_names),
        ("bad-operator", "operators[1]", r"'ana\u200b' cannot be a name", of_names),
        ("bad-value", "groups.sre ", "'sre ' cannot be a name", of_names),
        ("bad-value", "groups.all[1]", "'' cannot be a name", of_names),
        ("bad-value", "allowed_signers[4]", "this line is not an allowed signer", of_signers),
        ("bad-value", "allowed_signers[5]", "this line is not an allowed signer", of_signers),
    ]


def test_a_stored_policy_is_read_as_it_was_written() -> None:
    document: dict[str, Any] = {
        "approvers": ["ana"],
        "self_approval": True,
        "known_by": ["totp"],
        "allowed_signers": ["ana ssh-ed25519 AAAA"],
    }
    assert policy_of(document).to_document() == document
    assert policy_of({}).to_document() == {}
    freezes: dict[str, Any] = {"freezes": [{"name": "年末", "from": "2026-12-20T00:00", "until": "2027-01-04T06:00"}]}
    assert policy_of(freezes).to_document() == freezes
    with pytest.raises(InvalidPlanError) as error:
        policy_of({"approver": ["ana"]})
    assert [problem.at for problem in error.value.problems] == ["approver"]


@pytest.mark.parametrize("at", ["approvers", "operators", "groups"])
@pytest.mark.parametrize(
    ("name", "is_name"), [("小明", True), ("Ana Maria", True), ("", False), ("ana ", False), ("a\nb", False), ("a\u00adb", False)]
)
def test_a_name_is_printable_and_as_it_is_shown(at: str, name: str, is_name: bool) -> None:
    document: dict[str, Any] = {at: {name: ["ana"]} if at == "groups" else [name]}
    if is_name:
        assert policy_of(document).to_document() == document
    else:
        with pytest.raises(InvalidPlanError):
            policy_of(document)


def test_settings_alone_restrict_what_they_name() -> None:
    signers = Path("/etc/signers")
    settings = Settings(
        approvers=("sre", "ana"), groups={"sre": ["bo", "ana"]}, known_by=("totp",), gate_effects=("write", "read"), allowed_signers=signers
    )
    assert effective_policy(settings) == EffectivePolicy(
        approvers=("bo", "ana"),
        groups={"sre": ["bo", "ana"]},
        named=("sre", "ana"),
        known_by=("totp",),
        gate_effects=("read", "write"),
        allowed_signers=signers,
    )
    assert effective_policy(settings).stored == Policy()
    assert effective_policy(Settings(), policy := Policy(allowed_signers=["a b c", "d e f"])).allowed_signers == "a b c\nd e f"
    assert effective_policy(settings, policy).stored == policy
    assert effective_policy(settings, Policy()).allowed_signers is None


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InvalidPlanError, match="the file does not exist"):
        read_policy(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("first", "second", "result"),
    [
        (None, None, None),
        (("a",), None, ("a",)),
        (None, ("a",), ("a",)),
        (("a", "b"), ("b", "c"), ("b",)),
        (("a",), ("b",), ()),
        ((), None, ()),
    ],
)
def test_missing_lists_restrict_nothing_and_disjoint_lists_accept_nobody(first: Any, second: Any, result: Any) -> None:
    assert intersect(first, second) == result


SETTINGS: dict[str, dict[str, Any]] = {
    "more approvers": {"approvers": ("mallory", "ana")},
    "more operators": {"operators": ("mallory", "ana")},
    "members": {"groups": {"sre": ["mallory"]}},
    "another group": {"groups": {"sre": ["bo"], "ana": ["mallory"]}, "approvers": ("ana",)},
    "an empty group": {"groups": {"sre": []}},
    "other proofs": {"known_by": ("form", "unverified")},
    "self approval": {"allow_self_approval": True},
    "no gates": {"gate_effects": ()},
    "reads": {"gate_effects": ("read",)},
    "unapproved": {"allow_unapproved": True},
    "signers": {"allowed_signers": Path("/tmp/mine")},
}


@pytest.mark.parametrize("given", SETTINGS.values(), ids=SETTINGS)
def test_settings_can_only_be_stricter_than_the_stores_policy(given: dict[str, Any]) -> None:
    policy = Policy(
        approvers=["sre", "ana"],
        operators=["ana"],
        groups={"sre": ["bo"]},
        known_by=["ssh_signature"],
        self_approval=False,
        gate_effects=["write"],
        allow_unapproved=False,
        allowed_signers=["ana ssh-ed25519 AAAA"],
    )
    alone, merged = effective_policy(Settings(), policy, number=1), effective_policy(Settings(**given), policy, number=1)
    assert set(merged.approvers or ()) <= set(alone.approvers or ())
    assert set(merged.operators or ()) <= {"ana"}
    assert merged.groups == {"sre": ["bo"]}
    assert set(merged.known_by or ()) <= {"ssh_signature"} and merged.known_by is not None
    assert (merged.self_approval, merged.allow_unapproved) == (False, False)
    assert "write" in merged.gate_effects
    assert merged.allowed_signers == "ana ssh-ed25519 AAAA"


def test_stricter_settings_apply() -> None:
    settings = Settings(
        approvers=("ana",), operators=("bo",), known_by=("totp",), allow_self_approval=False, gate_effects=("read",), allow_unapproved=False
    )
    assert effective_policy(settings, Policy(approvers=["ana", "bo"], groups={"g": ["ana"]}), number=3) == EffectivePolicy(
        number=3,
        approvers=("ana",),
        operators=("bo",),
        groups={"g": ["ana"]},
        named=("ana", "ana", "bo"),
        known_by=("totp",),
        self_approval=False,
        gate_effects=("read",),
        allow_unapproved=False,
    )


@pytest.mark.parametrize("where", ["settings", "store"])
def test_a_group_without_members_accepts_no_approver(where: str) -> None:
    groups: dict[str, list[str]] = {"sre": []}
    if where == "store":
        assert effective_policy(Settings(), Policy(approvers=["sre"], groups=groups), number=1).approvers == ()
    else:
        assert effective_policy(Settings(approvers=("sre",), groups=groups)).approvers == ()


def test_a_file_without_freezes_is_kept_as_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("approvers: [ana]\n", encoding="utf-8")
    assert read_policy(tmp_path / "policy.yaml").to_document() == {"approvers": ["ana"]}


def test_mistakes_in_freezes_are_named_with_their_places() -> None:
    period = {"from": "2026-12-20T00:00", "until": "2027-01-04T06:00"}
    document: dict[str, Any] = {
        "freezes": [
            {"name": "a", **period, "override": {"approvers": ["ana", " bo"]}},
            {"name": "b", "calendar": "blackout.ics"},
            {"name": "c", **period},
        ]
    }
    with pytest.raises(InvalidPlanError) as error:
        policy_of(document)
    assert [(problem.code, problem.at, problem.message, problem.hint) for problem in error.value.problems] == [
        (
            "bad-approver",
            "freezes[0].override.approvers[1]",
            "' bo' cannot be a name",
            "write the name without white space around it and without invisible characters",
        ),
        ("bad-freeze", "freezes[1].calendar", "the text of the calendar is missing", "read the policy with `read_policy`"),
    ]


@pytest.mark.parametrize("allowed", [True, False])
def test_the_policy_says_whether_authors_may_approve(allowed: bool) -> None:
    assert effective_policy(Settings(), Policy(author_approval=allowed), number=1).author_approval is allowed
    assert effective_policy(Settings()).author_approval


def test_a_quorum_larger_than_the_named_approvers_is_refused() -> None:
    groups = {"sre": ["ana", "ANA", "bo"]}
    with pytest.raises(InvalidPlanError) as error:
        policy_of({"approvers": ["sre"], "groups": groups, "quorum": 3})
    (problem,) = error.value.problems
    assert (problem.code, problem.at) == ("bad-quorum", "quorum")
    assert problem.message == "3 different people must approve, and `approvers` names only ana and bo"
    assert problem.hint == "name more approvers, or lower the quorum"
    assert policy_of({"approvers": ["sre"], "groups": groups, "quorum": 2}).quorum == 2
    assert policy_of({"quorum": 3}).quorum == 3, "the plans name the approvers"


@pytest.mark.parametrize(("of_settings", "of_policy", "result"), [(1, 2, 2), (3, 2, 3), (1, 1, 1)])
def test_the_larger_quorum_counts(of_settings: int, of_policy: int, result: int) -> None:
    assert effective_policy(Settings(quorum=of_settings), Policy(quorum=of_policy), number=1).quorum == result
    assert effective_policy(Settings(quorum=of_settings)).quorum == of_settings
