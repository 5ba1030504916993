"""Python looks for garbage again once a run has been read, however that ended."""

import gc

import pytest

from plan_adapter.garbage import uncollected


def test_garbage_is_not_looked_for_within_and_is_again_afterwards() -> None:
    with pytest.raises(ValueError, match="unread"), uncollected():
        with uncollected():
            assert not gc.isenabled()
        assert not gc.isenabled()
        raise ValueError("unread")
    assert gc.isenabled()


def test_who_has_switched_it_off_keeps_it_so() -> None:
    gc.disable()
    try:
        with uncollected():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_was_made_within_is_not_looked_through_right_after() -> None:
    gc.collect()
    with uncollected():
        made = [[number] for number in range(5000)]
    assert gc.get_freeze_count() == 0
    assert gc.get_count()[0] < len(made)


def test_what_somebody_froze_stays_frozen() -> None:
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with uncollected():
            pass
        assert gc.get_freeze_count() > frozen / 2  # a few objects end meanwhile, in other threads, too
    finally:
        gc.unfreeze()
