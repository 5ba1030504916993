"""A real SSH server for tests, started once per session on loopback. Tests are skipped if OpenSSH's server is not installed."""

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.processes import kill_descendants

SSHD = shutil.which("sshd", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]))

DAEMON = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile {folder}/sshd.pid
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
PermitUserEnvironment no
MaxStartups 100
KexAlgorithms curve25519-sha256
PrintLastLog no
SetEnv XDG_STATE_HOME={folder}/state PATH={folder}/bin:/usr/local/bin:/usr/bin:/bin
"""

CLIENT = """\
Host web-1 127.0.0.1
  HostName 127.0.0.1
  Port {port}
  User {user}
  IdentityFile {folder}/{key}
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/{known}
  GlobalKnownHostsFile /dev/null
"""


HOST = "web-1"
"""What the SSH config calls the server."""

NASTY = [
    "",
    "a b",
    "it's",
    '"$HOME"',
    "$(id)`id`\\",
    "line\nline\n",
    "-n",
    "中文 \U0001f600",
    "*?[a]~ & | ; # !",
    "\\n\\0",
    "\t\x01\x7f\x81",
    "%s @CALL@",
]
"""Texts that have to reach a host exactly."""

_NAMES = (["dash"], ["bash", "--posix"], ["busybox", "sh"], ["ksh"], ["mksh"])
SHELLS = [[found, *words] for name, *words in _NAMES if (found := shutil.which(name))]
"""The commands of the POSIX shells of this machine."""


@dataclass(frozen=True)
class SshServer:
    """A running server that the SSH config `config` calls `web-1`, and the folder in which it keeps the records of calls."""

    folder: Path
    port: int
    process: "subprocess.Popen[bytes]" = field(repr=False)

    @property
    def config(self) -> Path:
        """The SSH config that reaches it."""
        return self.folder / "config"

    @property
    def calls(self) -> Path:
        """The folder of the records of calls."""
        return self.folder / "state/plan_adapter/calls"

    @property
    def connections(self) -> int:
        """How many connections it has accepted so far."""
        return (self.folder / "log").read_text().count("Accepted publickey")

    def write_config(self, name: str, *, key: str = "user_key", known: str = "known_hosts", port: int | None = None) -> Path:
        """Write another SSH config and return it."""
        text = CLIENT.format(port=port or self.port, user=_user(), folder=self.folder, key=key, known=known)
        (self.folder / name).write_text(text)
        return self.folder / name

    def end_sessions(self) -> None:
        """Kill the server's processes of all open connections, as if the network had failed. What they started keeps running."""
        kill_descendants(self.process.pid, "sshd")


def _user() -> str:
    return pwd.getpwuid(os.getuid()).pw_name


def _make_key(file: Path) -> str:
    """Create a key and return its public part."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "tests", "-f", file], check=True)
    return Path(f"{file}.pub").read_text()


@pytest.fixture(scope="session")
def ssh_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    """The session's SSH server. Skips the test where there is none."""
    with running_server(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@contextlib.contextmanager
def running_server(folder: Path) -> Iterator[SshServer]:
    """Start a server that keeps its files in `folder`, and end it with all its connections. Skips the test where there is none."""
    if SSHD is None or shutil.which("ssh") is None:
        pytest.skip("OpenSSH's server is not installed: apt-get install openssh-server")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    host_key = _make_key(folder / "host_key")
    (folder / "authorized_keys").write_text(_make_key(folder / "user_key"))
    _make_key(folder / "other_key")
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {host_key}")
    (folder / "changed_hosts").write_text(f"[127.0.0.1]:{port} {(folder / 'other_key.pub').read_text()}")
    (folder / "no_hosts").touch()
    (folder / "sshd_config").write_text(DAEMON.format(port=port, folder=folder))
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([SSHD, "-D", "-e", "-f", str(folder / "sshd_config")], stderr=log)
    server = SshServer(folder, port, process)
    server.write_config("config")
    try:
        _wait_until_it_listens(server)
        yield server
    finally:
        server.end_sessions()
        process.terminate()
        process.wait()


@pytest.fixture
def server(ssh_server: SshServer, monkeypatch: pytest.MonkeyPatch) -> SshServer:
    """Return the server, with the configuration that reaches it."""
    monkeypatch.setenv("PLAN_ADAPTER_SSH_CONFIG", str(ssh_server.config))
    return ssh_server


def _wait_until_it_listens(server: SshServer) -> None:
    while True:
        assert server.process.poll() is None, (server.folder / "log").read_text()
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", server.port)):
            return
        time.sleep(0.01)
