"""Torture: faults, bad files and load on the real thing, to find what breaks. `make torture SECONDS=1200 [SEED=n]`."""

import sys
from pathlib import Path

sys.path += [str(Path(__file__).parents[1] / floor) for floor in ("search", "app")]  # where their tests keep helpers
