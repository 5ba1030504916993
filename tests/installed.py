"""Where the commands come from that tests type: this environment, or that of `--installed`."""

import sys
from pathlib import Path

folder = Path(sys.executable).parent
