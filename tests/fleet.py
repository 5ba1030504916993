"""A fleet for tests: many names of one real SSH server, and the plan that restarts them one after the other."""

from pathlib import Path

from plan_adapter.model.record import PlanRun
from tests.ssh import SshServer

PLAN = """
name: rolling
description: Restart every node
hosts: {web: ["node-[01:LAST]"]}
max_parallel: 4
approval: {required: false}
env: {LOG: LOGFILE}
steps:
  - id: each
    for_each: "${{ hosts('web') }}"
    max_failures: MAX
    on_error: continue
    rollback_failed: true
    steps:
      - id: drain
        description: Take it out of the pool
        ssh: {host: "${{ item.host }}", script: 'echo drain "$NODE" >>"$LOG"'}
        env: {NODE: "${{ item.name }}"}
        rollback: {ssh: {host: "${{ item.host }}", script: 'echo undrain "$NODE" >>"$LOG"'}}
      - id: restart
        needs: drain
        description: Restart it
        ssh: {host: "${{ item.host }}", script: 'test ! -e "$LOG.$NODE"; echo restart "$NODE" >>"$LOG"'}
        env: {NODE: "${{ item.name }}"}
"""


class Fleet:
    """Names of one server, the plan that restarts them, and what happened on them."""

    def __init__(self, server: SshServer, folder: Path, hosts: int = 20) -> None:
        """Name the server `node-01`, `node-02`, … and keep the log of what happens on them in `folder`."""
        self.server, self.folder, self.log = server, folder, folder / "log"
        self.names = [f"node-{number:02}" for number in range(1, hosts + 1)]
        self.log.touch()
        self.set_away()

    @property
    def config(self) -> Path:
        """The SSH config that reaches the hosts."""
        return self.server.folder / "fleet"

    def set_away(self, *away: str) -> None:
        """Close the port of these hosts, and open that of all others."""
        config = self.server.config.read_text()
        closed = [line if "Port" not in line else "  Port 1" for line in config.replace("web-1 127.0.0.1", " ".join(away)).splitlines()]
        here = config.replace("web-1 127.0.0.1", " ".join(name for name in self.names if name not in away))
        self.config.write_text("\n".join([*(closed if away else []), here]))

    def set_broken(self, *broken: str) -> None:
        """Make the restart of these hosts fail."""
        for name in broken:
            Path(f"{self.log}.{name}").touch()

    def write_plan(self, max_failures: int) -> Path:
        """Write the plan and return its file."""
        text = PLAN.replace("LAST", self.names[-1].removeprefix("node-")).replace("MAX", str(max_failures))
        (self.folder / "plan.yaml").write_text(text.replace("LOGFILE", str(self.log)), encoding="utf-8")
        return self.folder / "plan.yaml"

    @property
    def done(self) -> list[str]:
        """What happened on the hosts, sorted."""
        return sorted(self.log.read_text().splitlines())


def both(*names: str) -> list[str]:
    """Return the events on hosts that are restarted, sorted."""
    return sorted(f"{what} {name}" for what in ("drain", "restart") for name in names)


def ends(run: PlanRun) -> dict[str, str]:
    """Return how each host ended."""
    return {item.label: item.status.value for item in run.step("each").items}
