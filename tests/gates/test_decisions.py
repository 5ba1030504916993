"""Every table by decision has an entry for every decision, because a missing one only fails when somebody gives that answer."""

from collections.abc import Mapping
from typing import get_args

import pytest

from plan_adapter.cli.answering import _CONFIRM_VERBS, DECISION_WORDS
from plan_adapter.engine.gate_loop import _DECISION_STATE_NAMES
from plan_adapter.model.approvals import ANSWERED, Decision
from plan_adapter.model.rounds import REPLIES
from plan_adapter.store.proof.entries import DECISION_ENTRIES


@pytest.mark.parametrize("table", [ANSWERED, REPLIES, DECISION_WORDS, _CONFIRM_VERBS, _DECISION_STATE_NAMES, DECISION_ENTRIES])
def test_a_table_has_every_decision(table: Mapping[str, object]) -> None:
    assert set(get_args(Decision)) <= table.keys()
