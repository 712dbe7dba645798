"""What is cut off in the middle: work that acknowledges what it has done, and a judge of what must then be there.

A scenario lives in a folder. `prepare` brings it to a state from which `unit`, run in a child, does one piece of work;
`judge`, also run in a child, looks at what an end at any moment left behind, raises where that is wrong, and mends
what a person would mend by running the command again.
"""

from __future__ import annotations

from torture.indexes import Repairs, Syncs, Writes
from torture.scenario import Scenario
from torture.single_files import Downloads, Files, Weights

__all__ = ["SCENARIOS", "Scenario", "Syncs", "Writes"]

SCENARIOS: dict[str, type[Scenario]] = {
    kind.__name__.lower(): kind for kind in (Writes, Syncs, Repairs, Weights, Downloads, Files)
}
