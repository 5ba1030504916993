import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.thorough
def test_type_checkers_see_the_signature_of_a_tool() -> None:
    file = Path(__file__).with_name("typed_tools.py")
    root = file.parent.parent.parent
    command = [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, str(file)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
