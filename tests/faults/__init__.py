"""Fault tests: the processes of a run are killed at crash points, and its record is checked against an external world."""
