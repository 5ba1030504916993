"""Tests of what other users of a machine can do to the home, the store and the server's folder, by modes, owners and links."""

import os
import pwd
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plan_adapter import PlanStore
from plan_adapter.cli.app import main
from plan_adapter.engine.diagnosis import diagnose
from plan_adapter.engine.local_server import ensure_server, server_status, stop_server
from plan_adapter.engine.server_state import ServerFolder, ServerState, launch
from plan_adapter.execution.results import ResultLimit
from plan_adapter.local.private_files import UnsafePathError, check_folder, make_folder
from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import NoServerError

OTHER_UID = 54321
"""The uid of another account. No such account exists."""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the owner of a folder")

PLAN = """
description: Say something
options: {require_approval: false}
steps:
  - {id: say, tool_name: bash, description: Say it, parameters: {command: "printf '%5000s' x"}}
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home that does not exist yet, in a private folder."""
    tmp_path.chmod(0o700)
    monkeypatch.setenv("PLAN_ADAPTER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PLAN_ADAPTER_RESULT_LIMIT_BYTES", "1024")
    return tmp_path / "home"


@pytest.fixture(params=[0o000, 0o022, 0o027, 0o077, 0o777], ids=lambda mask: f"umask-{mask:03o}")
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """The umask of the account."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def modes(folder: Path) -> dict[str, int]:
    """Return the modes of a folder and of everything in it."""
    return {str(path.relative_to(folder.parent)): mode(path) for path in (folder, *folder.rglob("*"))}


def wrong_modes(folder: Path) -> dict[str, str]:
    """Return the modes that give access to others, or deny it to this account."""
    wanted = {True: 0o700, False: 0o600}
    found = ((path, mode(path), wanted[path.is_dir()]) for path in (folder, *folder.rglob("*")))
    return {str(path): f"{seen:04o}" for path, seen, right in found if seen & 0o077 or seen & right != right}


# Modes under every umask.


def test_a_run_leaves_no_file_readable_by_others_under_any_umask(home: Path, umask: int, capsys: pytest.CaptureFixture[str]) -> None:
    document, exported = home.parent / "plan.yaml", home.parent / "run.json"
    document.write_text(PLAN)
    document.chmod(0o600)
    assert main(["run", str(document), "--offline"]) == 0, capsys.readouterr().err
    run_id = next((home / "results").iterdir()).name
    assert len(list((home / "results" / run_id).iterdir())) == 1
    assert wrong_modes(home) == {}
    assert main(["export", run_id, "--output", str(exported)]) == 0, capsys.readouterr().err
    assert mode(exported) == 0o600


def test_server_files_are_private_under_any_umask(home: Path, umask: int) -> None:
    folder = ServerFolder(home / "server")
    with folder.lock_start():
        password = folder.make_password()
        assert folder.make_password() == password
        folder.write_state(ServerState(pid=1, process_start="", host="", port=1, prefect_version="3", started_at=0.0))
        for descriptor in (folder.open_log(), folder.acquire_alive_lock()):
            assert descriptor is not None
            os.close(descriptor)
    assert wrong_modes(home) == {}
    assert set(modes(home / "server")) >= {
        "server/start.lock",
        "server/alive.lock",
        "server/server.log",
        "server/server.json",
        "server/password",
    }


def test_new_folders_above_a_home_are_private(home: Path, umask: int) -> None:
    make_folder(home / "a" / "b")
    assert modes(home) == {"home": 0o700, "home/a": 0o700, "home/a/b": 0o700}


async def test_sqlite_sidecar_files_have_the_mode_of_the_store(home: Path, umask: int) -> None:
    async with PlanStore() as store:
        await store.runs()
        found = {path.name: mode(path) for path in home.iterdir()}
    assert {"plans.db", "plans.db-wal", "plans.db-shm"} <= set(found)
    assert set(found.values()) == {0o600}


@pytest.mark.parametrize("before", [0o755, 0o750, 0o711, 0o555 | 0o700], ids=oct)
def test_an_own_home_readable_by_others_is_made_private(home: Path, before: int) -> None:
    home.mkdir()
    (home / "plans.db").touch()
    home.chmod(before)
    (home / "plans.db").chmod(0o644)
    assert main(["runs"]) == 0
    assert (mode(home), mode(home / "plans.db")) == (0o700, 0o600)


def test_a_password_readable_by_others_is_replaced(home: Path) -> None:
    folder = ServerFolder(home / "server")
    with folder.lock_start():
        password = folder.make_password()
        folder.password_file.chmod(0o644)
        assert folder.make_password() != password
    assert mode(folder.password_file) == 0o600


def test_a_password_file_that_is_a_link_is_replaced_and_not_followed(home: Path, tmp_path: Path) -> None:
    folder = ServerFolder(home / "server")
    (tmp_path / "theirs").write_text("plan:known\n")
    with folder.lock_start():
        folder.password_file.symlink_to(tmp_path / "theirs")
        assert folder.make_password() != "plan:known"
    assert not folder.password_file.is_symlink()
    assert (tmp_path / "theirs").read_text() == "plan:known\n"


def test_an_export_never_follows_a_planted_link(home: Path, tmp_path: Path) -> None:
    document, victim = tmp_path / "plan.yaml", tmp_path / "victim"
    document.write_text(PLAN)
    victim.write_text("precious")
    assert main(["run", str(document), "--offline"]) == 0
    (tmp_path / f".run.json.{os.getpid()}").symlink_to(victim)
    assert main(["export", next((home / "results").iterdir()).name, "--output", str(tmp_path / "run.json")]) == 2
    assert victim.read_text() == "precious"


# Homes that other users control or once controlled.


def writable(home: Path) -> None:
    home.mkdir()
    home.chmod(0o777)


def sticky(home: Path) -> None:
    home.mkdir()
    home.chmod(0o1777)


def link(home: Path) -> None:
    (home.parent / "real").mkdir(mode=0o700)
    home.symlink_to(home.parent / "real")


def dangling(home: Path) -> None:
    home.symlink_to(home.parent / "nothing")


def swappable(home: Path) -> None:
    home.mkdir(mode=0o700)
    home.parent.chmod(0o777)


def swappable_and_new(home: Path) -> None:
    home.parent.chmod(0o777)


def owned_by_another(home: Path) -> None:
    home.mkdir(mode=0o700)
    os.chown(home, OTHER_UID, OTHER_UID)


def in_a_folder_owned_by_another(home: Path) -> None:
    home.mkdir(mode=0o700)
    os.chown(home.parent, OTHER_UID, OTHER_UID)


def behind_a_link_owned_by_another(home: Path) -> None:
    real = home.parent / "real"
    real.mkdir(mode=0o700)
    shared = home.parent / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "link").symlink_to(real)
    os.chown(shared / "link", OTHER_UID, OTHER_UID, follow_symlinks=False)
    os.environ["PLAN_ADAPTER_HOME"] = str(shared / "link" / "home")


def behind_a_link_in_a_writable_folder(home: Path) -> None:
    real = home.parent / "real"
    real.mkdir(mode=0o700)
    shared = home.parent / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    (shared / "link").symlink_to(real)
    os.environ["PLAN_ADAPTER_HOME"] = str(shared / "link" / "home")


def squatted(home: Path) -> None:
    home.parent.chmod(0o1777)
    home.mkdir()
    os.chown(home, OTHER_UID, OTHER_UID)


def writable_store(home: Path) -> None:
    home.mkdir(mode=0o755)
    (home / "plans.db").touch()
    (home / "plans.db").chmod(0o666)


UNSAFE = [
    pytest.param(writable, "other users may write to {home} (mode 0777)", "chmod 700 {home}", id="writable"),
    pytest.param(sticky, "other users may write to {home} (mode 1777)", "chmod 700 {home}", id="sticky"),
    pytest.param(link, "{home} is a symbolic link", "set PLAN_ADAPTER_HOME so that it names the folder itself ({parent}/real)", id="link"),
    pytest.param(dangling, "{home} is a symbolic link", "set PLAN_ADAPTER_HOME", id="dangling-link"),
    pytest.param(swappable, "other users may write to {parent} (mode 0777)", "chmod go-w {parent}", id="parent-writable"),
    pytest.param(swappable_and_new, "could replace {home} with another folder", "chmod go-w {parent}", id="parent-writable-new"),
    pytest.param(owned_by_another, "{home} belongs to the account 54321", "a folder of your own", id="another-owner", marks=as_root),
    pytest.param(
        in_a_folder_owned_by_another, "{parent} belongs to the account 54321", "a folder elsewhere", id="parent-of-another", marks=as_root
    ),
    pytest.param(
        behind_a_link_owned_by_another, "{parent}/shared/link belongs to the account 54321", "your own", id="link-of-another", marks=as_root
    ),
    pytest.param(
        behind_a_link_in_a_writable_folder, "other users may write to {parent}/shared", "chmod go-w {parent}/shared", id="link-swappable"
    ),
    pytest.param(squatted, "{home} belongs to the account 54321", "a folder of your own", id="squatted-in-tmp", marks=as_root),
]


@pytest.mark.parametrize(("spoil", "why", "fix"), [*UNSAFE, pytest.param(writable_store, "{home}/plans.db", "chmod 600", id="store")])
def test_the_store_of_an_unsafe_home_is_refused_with_the_fix(
    home: Path, capsys: pytest.CaptureFixture[str], spoil: Callable[[Path], None], why: str, fix: str
) -> None:
    spoil(home)
    assert main(["runs"]) == 9
    err = capsys.readouterr().err
    assert "is not opened: " in err
    for text in (why, fix):
        assert text.format(home=home, parent=home.parent) in err


@pytest.mark.parametrize(("spoil", "why", "fix"), UNSAFE)
def test_the_local_server_is_not_used_in_an_unsafe_home(home: Path, spoil: Callable[[Path], None], why: str, fix: str) -> None:
    spoil(home)
    settings = Settings()
    for use in (lambda: ensure_server(settings, notify=print), lambda: server_status(settings), lambda: stop_server(settings)):
        with pytest.raises(NoServerError, match="the local Prefect server is not used: ") as refused:
            use()
        for text in (why, fix):
            assert text.format(home=home, parent=home.parent) in str(refused.value)


@pytest.mark.parametrize(("spoil", "why", "fix"), UNSAFE)
def test_doctor_reports_an_unsafe_home(home: Path, spoil: Callable[[Path], None], why: str, fix: str) -> None:
    spoil(home)
    bad = [finding for finding in diagnose(Settings()) if not finding.ok]
    assert any(why.format(home=home, parent=home.parent) in finding.hint for finding in bad)


@pytest.mark.parametrize("spoil", [writable, sticky, link], ids=["writable", "sticky", "link"])
def test_a_server_folder_writable_by_others_is_refused_in_a_safe_home(home: Path, spoil: Callable[[Path], None]) -> None:
    home.mkdir(mode=0o700)
    spoil(home / "server")
    with pytest.raises(NoServerError, match="the local Prefect server is not used: "):
        server_status(Settings())


def test_a_home_below_a_sticky_folder_is_accepted(home: Path) -> None:
    home.parent.chmod(0o1777)
    make_folder(home)
    check_folder(home)


def test_a_home_below_a_folder_of_the_accounts_own_group_is_accepted(home: Path) -> None:
    own = os.getegid()
    members = [account for account in pwd.getpwall() if account.pw_gid == own and account.pw_uid not in (0, os.geteuid())]
    if members:
        pytest.skip("this account shares its group")
    home.parent.chmod(0o770)
    make_folder(home)
    assert mode(home) == 0o700


def test_a_folder_of_a_shared_group_is_refused(home: Path) -> None:
    shared = next((account.pw_gid for account in pwd.getpwall() if account.pw_uid not in (0, os.geteuid())), None)
    if os.geteuid() != 0 or shared is None:
        pytest.skip("only root can change the group of a folder")
    os.chown(home.parent, -1, shared)
    home.parent.chmod(0o770)
    with pytest.raises(UnsafePathError, match="chmod go-w"):
        make_folder(home)


def test_a_circle_of_links_is_an_error(home: Path) -> None:
    (home.parent / "a").symlink_to(home.parent / "b")
    (home.parent / "b").symlink_to(home.parent / "a")
    with pytest.raises(OSError):
        make_folder(home.parent / "a" / "home")


def test_a_result_is_not_written_to_a_folder_writable_by_others(home: Path) -> None:
    from plan_adapter.model.errors import StoreError

    make_folder(home)
    (home / "results").mkdir()
    (home / "results").chmod(0o777)
    with pytest.raises(StoreError, match="other users may write to"):
        ResultLimit(1024, home / "results").keep("x" * 5000, run_id="0d8a", name="say-1")


def test_a_world_writable_store_outside_the_home_is_refused(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "elsewhere" / "plans.db"
    monkeypatch.setenv("PLAN_ADAPTER_DATABASE_URL", f"sqlite:///{file}")
    assert main(["runs"]) == 0
    assert (mode(file.parent), mode(file)) == (0o700, 0o600)
    file.chmod(0o666)
    capsys.readouterr()
    assert main(["runs"]) == 9
    assert f"chmod 600 {file}" in capsys.readouterr().err


def test_a_server_whose_folder_became_unsafe_is_not_launched(home: Path) -> None:
    folder = ServerFolder(home / "server")
    make_folder(home)
    writable(home / "server")
    with pytest.raises(UnsafePathError), folder.lock_start():
        launch(folder, None)
