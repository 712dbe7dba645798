"""Maker: what makes the vectors of an index, and the refusal of whatever would make others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from crow.framework.reduce import Whitening
from crow.recipe import Recipe
from crow.search.matrix import SearchError
from crow.search.store import Store
from crow.search.work import Describes


class Maker:
    """The describer of an index: given, or made when it is first needed."""

    def __init__(self, store: Store, recipe: Recipe, given: Describes | None, options: Mapping[str, Any]) -> None:
        self.store, self.recipe = store, recipe
        self._options = {name: value for name, value in options.items() if value is not None}
        self._describer = None if given is None else self.checked(given)

    @property
    def describer(self) -> Describes:
        """The one that was given, or one made for the recipe now."""
        if self._describer is None:
            self._describer = self.checked(made(self.recipe, self.options()))
        return self._describer

    def checked(self, describer: Describes) -> Describes:
        """The describer, refused by name where its vectors would not mix with the ones that are here."""
        address, theirs = self.store.address, describer.recipe
        if theirs.key() != self.recipe.key():
            differences = "; ".join(self.recipe.differences(theirs))
            raise SearchError(
                f"{address}: this index was made with {self.recipe.name}, not with {theirs.name} ({differences})"
            )
        settings = self.store.settings()
        for name, what in (("weights", "network weights"), ("precision", "precision")):
            known, offered = settings.get(name), getattr(describer, name)
            if known is not None and known != offered:
                raise SearchError(f"{address}: this index was made with {what} {known}, not {offered}")
        return describer

    def claimed(self) -> Describes:
        """The describer, and from now on the index is bound to what it is."""
        self.claim(self.describer)
        return self.describer

    def claim(self, describer: Any) -> None:
        """Bind the index to what a describer is, here or on another machine; refused where it does not fit."""
        if "weights" not in self.store.settings():
            regional = getattr(describer, "regional", None)
            more = {"regional": regional.to_bytes()} if isinstance(regional, Whitening) else {}
            engine = str(getattr(getattr(describer, "engine", None), "name", ""))
            self.store.configure(weights=describer.weights, precision=describer.precision, engine=engine, **more)
        self.checked(describer)

    def options(self) -> dict[str, Any]:
        """What a describer of this index is made with."""
        settings, options = self.store.settings(), dict(self._options)
        if settings.get("precision") == "fast":
            options.setdefault("engine", settings.get("engine"))
        if settings.get("regional"):
            options.setdefault("regional", Whitening.from_bytes(settings["regional"]))
        return options


def made(recipe: Recipe, options: Mapping[str, Any]) -> Describes:
    """A describer of a recipe, here or in a worker."""
    from crow.extract.describer import Describer

    return Describer(replace(recipe, regional="unfitted") if recipe.regional else recipe, **options)
