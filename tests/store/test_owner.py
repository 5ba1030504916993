"""Tests of owners: processes with a reused id or on another host are told apart."""

import os
import subprocess
import sys
from dataclasses import replace

from plan_adapter.model.host_process import HostProcess


def test_this_process_is_alive():
    owner = HostProcess.parse(str(HostProcess.this()))
    assert owner == HostProcess.this()
    assert (owner.pid, owner.is_here, owner.is_alive, owner.has_died) == (os.getpid(), True, True, False)


def test_a_process_with_a_reused_id_is_another_process():
    reused = replace(HostProcess.this(), started="1")
    assert (reused.is_alive, reused.has_died) == (False, True)


def test_an_ended_process_is_dead_even_before_it_is_reaped():
    tell = "from plan_adapter.model.host_process import HostProcess; print(HostProcess.this(), flush=True)"
    with subprocess.Popen([sys.executable, "-c", tell], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        owner = HostProcess.parse(process.stdout.read())  # until its end
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert owner.pid == process.pid
        assert owner.has_died


def test_the_state_of_an_owner_on_another_host_is_unknown():
    elsewhere = replace(HostProcess.this(), place="elsewhere")
    assert (elsewhere.is_here, elsewhere.is_alive, elsewhere.has_died) == (False, False, False)
