"""When the local Prefect server demands a password: always, never, or where others could reach it."""

import os
import pwd
import shlex
import sys
from pathlib import Path

NO_SHELLS = ("false", "nologin", "sync", "shutdown", "halt", "git-shell")
FIRST_UID = 500 if sys.platform == "darwin" else 1000
NOBODY = 65534


def why_password(mode: str) -> str | None:
    """Return why a local server demands a password, None if it needs none."""
    if mode == "off":
        return None
    if mode == "on":
        return "PLAN_ADAPTER_LOCAL_SERVER_AUTH=on"
    if os.environ.get("SSH_CONNECTION"):
        return "this machine is reached over SSH"
    others = other_people()
    return f"other people can log in to this machine ({', '.join(others[:3])}{', …' if len(others) > 3 else ''})" if others else None


def other_people() -> list[str]:
    """Return the accounts of people, other than this process's, that can log in: a number from 1000 on and a real shell.

    Root is not among them: it reads what it wants anyway. Neither are accounts of services, nor those that a directory such as LDAP does
    not list.
    """
    return [
        one.pw_name
        for one in pwd.getpwall()
        if one.pw_uid >= FIRST_UID and one.pw_uid not in (os.geteuid(), NOBODY) and Path(one.pw_shell or "sh").name not in NO_SHELLS
    ]


def login_hint(password_file: Path) -> str:
    """Return how a person logs in to the UI; the password itself is never shown."""
    return f"its pages ask for a password: `cat {shlex.quote(str(password_file))}` prints it"
