"""Makes the packages in `scripts/` importable for the tests in this folder."""

import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

# A shell has its background jobs ignore interrupts, and what they start inherits that.
signal.signal(signal.SIGINT, signal.default_int_handler)
