"""Which process executes a run: told apart from others of the same id, and from those of other hosts."""

import os
import subprocess
import sys
from dataclasses import replace

from plan_adapter.store.holder import Holder


def test_this_process_lives():
    holder = Holder.parse(str(Holder.this()))
    assert holder == Holder.this()
    assert (holder.pid, holder.is_here, holder.is_alive, holder.has_died) == (os.getpid(), True, True, False)


def test_another_process_of_the_same_id_is_another_process():
    reused = replace(Holder.this(), started="1")
    assert (reused.is_alive, reused.has_died) == (False, True)


def test_a_process_that_has_ended_is_dead_even_before_it_was_waited_for():
    tell = "from plan_adapter.store.holder import Holder; print(Holder.this(), flush=True)"
    with subprocess.Popen([sys.executable, "-c", tell], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        holder = Holder.parse(process.stdout.read())  # until its end
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert holder.pid == process.pid
        assert holder.has_died


def test_of_a_process_of_another_host_nothing_is_known():
    elsewhere = replace(Holder.this(), place="elsewhere")
    assert (elsewhere.is_here, elsewhere.is_alive, elsewhere.has_died) == (False, False, False)
