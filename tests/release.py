"""`make release-check`: build the distributions into `dist`, install the wheel in an empty environment, and use it as documented.

The wheel gets the newest versions of everything. Outside the checkout, its `plan` prints the guide; the README's tour, the tutorial, the
recipes and the first deployment of `plan guide deploying` run with it; and a gate of each kind is answered through the API and in both UIs.
"""

import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path

from tests.matrix import ROOT, started

DIST = ROOT / "dist"
AS_DOCUMENTED = ("tests/test_readme.py", "tests/guide/test_pages.py", "tests/deployments/test_first_deployment.py")
GATES = "tests/browser/test_every_gate.py::test_every_kind_of_gate_is_answered"


def build() -> Path:
    """Build the source distribution, and from it the wheel, and return the wheel."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "hatchling", "build", "--directory", str(DIST), "--target", "sdist", folder=ROOT)
    with tempfile.TemporaryDirectory() as unpacked:
        with tarfile.open(next(DIST.glob("*.tar.gz"))) as source:
            source.extractall(unpacked, filter="data")
        (folder,) = Path(unpacked).iterdir()
        run(sys.executable, "-m", "hatchling", "build", "--directory", str(DIST), "--target", "wheel", folder=folder)
    return next(DIST.glob("*.whl"))


def check_contents(wheel: Path) -> None:
    """Check that the wheel has every file of the package that git has, and nothing else."""
    tracked = subprocess.run(["git", "ls-files", "plan_adapter"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert packed == set(tracked), sorted(packed ^ set(tracked))


def run(*command: str, folder: Path) -> str:
    """Run a command and return what it prints. Raises CalledProcessError."""
    print("$", *command, file=sys.stderr, flush=True)
    return subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> int:
    """Build and check. Raises AssertionError or CalledProcessError."""
    wheel = build()
    check_contents(wheel)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), f"CHANGELOG.md has no section for {version}"
    with tempfile.TemporaryDirectory() as empty:
        folder = Path(empty)
        environment = folder / "installed"
        run(sys.executable, "-m", "venv", str(environment), folder=folder)
        python, plan = str(environment / "bin" / "python"), str(environment / "bin" / "plan")
        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(wheel), folder=folder)
        assert run(plan, "--version", folder=folder).strip() == f"plan {version}"
        topics = [line.split()[0] for line in run(plan, "guide", folder=folder).splitlines()[1:]]
        for topic in topics:
            assert run(plan, "guide", topic, folder=folder).startswith("# ")
        pytest = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not benchmark", "--installed", str(environment))
        run(*pytest, *AS_DOCUMENTED, folder=ROOT)
        with started(Path(python)) as url:
            print(run(*pytest, "--prefect-server", url, GATES, folder=ROOT))
        print(run(python, "-m", "pip", "freeze", folder=folder))
    print(f"checked: {', '.join(sorted(path.name for path in DIST.iterdir()))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
