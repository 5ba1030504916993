"""Which process executes a run: told apart from others of the same id, and from those of other hosts."""

import os
import subprocess
import sys
from dataclasses import replace

from plan_adapter.store.leases import Owner


def test_this_process_lives():
    owner = Owner.parse(str(Owner.this()))
    assert owner == Owner.this()
    assert (owner.pid, owner.is_here, owner.is_alive, owner.has_died) == (os.getpid(), True, True, False)


def test_another_process_of_the_same_id_is_another_process():
    reused = replace(Owner.this(), started="1")
    assert (reused.is_alive, reused.has_died) == (False, True)


def test_a_process_that_has_ended_is_dead_even_before_it_was_waited_for():
    tell = "from plan_adapter.store.leases import Owner; print(Owner.this(), flush=True)"
    with subprocess.Popen([sys.executable, "-c", tell], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        owner = Owner.parse(process.stdout.read())  # until its end
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert owner.pid == process.pid
        assert owner.has_died


def test_of_a_process_of_another_host_nothing_is_known():
    elsewhere = replace(Owner.this(), place="elsewhere")
    assert (elsewhere.is_here, elsewhere.is_alive, elsewhere.has_died) == (False, False, False)
