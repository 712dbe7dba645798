"""CroW: photographs become vectors, vectors become an index, an index answers queries.

Importing this imports nothing heavy: each name below is fetched from its room when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_ROOMS = {
    "Recipe": "crow.recipe",
    "RECIPES": "crow.recipe",
    "Size": "crow.recipe",
    "describe": "crow.framework.describe",
    "Whitening": "crow.framework.reduce",
    "NETWORKS": "crow.extract.networks",
    "Describer": "crow.extract.describer",
    "Index": "crow.search.index",
    "Hit": "crow.search.index",
}
__all__ = ["NETWORKS", "RECIPES", "Describer", "Hit", "Index", "Recipe", "Size", "Whitening", "__version__", "describe"]

if TYPE_CHECKING:
    from crow.framework.describe import describe
    from crow.framework.reduce import Whitening
    from crow.recipe import RECIPES, Recipe, Size


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module 'crow' has no attribute {name!r}")
    value = getattr(import_module(_ROOMS[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
