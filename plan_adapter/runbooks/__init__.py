"""Runbooks: turning a good run into one."""
