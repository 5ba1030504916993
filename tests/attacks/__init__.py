"""Attacks, each of which got through once or was tried: nothing gets past the gate, into the record, or out of it.

One file per area. A case attacks the real thing (a store on SQLite and PostgreSQL, a child process, a server) and asserts that the
attack did not work; the security page (`plan guide security`) names the test behind each promise.
"""
