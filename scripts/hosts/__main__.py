"""Started by `scripts/hosts.sh` as `python scripts/hosts ...`."""

import sys
from pathlib import Path

# Python puts this folder on the path; the package is one level up. The job does not inherit this.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from hosts.command import main  # noqa: E402

sys.exit(main(sys.argv[1:]))
