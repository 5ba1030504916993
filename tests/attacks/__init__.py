"""Tests that attack the package. Nothing may get past a gate, falsify the record or leak a secret.

One file per area. Each case attacks the real thing (a store on SQLite and PostgreSQL, a child process, a server) and asserts that the
attack fails. The security page (`plan guide security`) names the tests behind each promise.
"""
