"""Recipe: everything that changes a vector, and nothing that does not.

A recipe has two halves. The `View` says which feature map is looked at (it keys cached maps); the other
fields say how the map becomes a vector (with the view they key vectors). Each part carries its own numbers,
and its `kind` names a function in the room of the same name under `framework/`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from numbers import Integral, Real
from typing import Any


class RecipeError(ValueError):
    """A recipe that does not exist, cannot be read, or does not fit."""


@dataclass(frozen=True)
class Part:
    """A part of a recipe: every field holds a value of the type of its default, and numbers are positive."""

    def __post_init__(self) -> None:
        for field in fields(self):  # 2, 2.0 and NumPy's 2 become one, so that equal recipes have equal keys
            object.__setattr__(self, field.name, self._checked(field.name, getattr(self, field.name)))

    @classmethod
    def _checked(cls, name: str, value: Any) -> Any:
        default = getattr(cls, name, "")
        if not isinstance(default, (int, float)) or isinstance(default, bool):
            if isinstance(value, type(default)):
                return value
        elif isinstance(value, Real) and not isinstance(value, bool) and float(value) > 0:
            if isinstance(default, float) and (math.isfinite(value) or name == "a"):
                return float(value)
            if isinstance(default, int) and isinstance(value, Integral):
                return int(value)
        raise RecipeError(f"{value!r} is no value for the recipe field {name!r} of {cls.__name__}")


@dataclass(frozen=True)
class Size:
    """How large a picture enters the network; nothing is ever enlarged but a short side below 64 pixels."""

    rule: str = "original"  # "original", "largest" (longest side at most `pixels`), "square" (pixels x pixels)
    pixels: int = 0

    def __post_init__(self) -> None:
        if self.rule not in ("original", "largest", "square"):
            raise RecipeError(f"no size rule named {self.rule!r}; there are: original, largest, square")
        if type(self.pixels) is not int or (self.rule == "original") != (self.pixels == 0) or self.pixels < 0:
            raise RecipeError(f"size rule {self.rule!r} does not go with {self.pixels} pixels")

    @classmethod
    def parse(cls, text: str) -> Size:
        """`original`, `512` (longest side) or `586x586` (square, as SPoC's)."""
        number = text.strip().lower()
        if number == "original":
            return cls()
        if number.isdecimal() and int(number) > 0:
            return cls("largest", int(number))
        width, _, height = number.partition("x")
        if width == height and width.isdecimal() and int(width) > 0:
            return cls("square", int(width))
        raise RecipeError(
            f"a size is 'original', a longest side such as 512, or a square such as 586x586; not {text!r}"
        )

    def __str__(self) -> str:
        return {"original": "original", "largest": f"{self.pixels}", "square": f"{self.pixels}x{self.pixels}"}[
            self.rule
        ]


# Chosen by measurement (docs/speed.md): whole photographs are found as well as at 384 and better than at 640, for 64 % of
# its time; small boxes lose a little to 640.
EVERYDAY = Size("largest", 512)


@dataclass(frozen=True)
class View(Part):
    """The feature map that is looked at: network, the layer it is cut after, picture size, orientation."""

    network: str = "vgg16"
    layer: str = "conv5_3"  # always BEFORE the recipe's own pooling
    size: Size = EVERYDAY
    upright: bool = True  # apply the EXIF orientation; benchmarks say False


@dataclass(frozen=True)
class Pool(Part):
    """Step 1, local pooling of the map."""

    kind: str = "none"
    size: int | tuple[int, int] = 2  # the neighbourhood, or (width, height); larger ones are cut to the map
    stride: int = 2
    ceil: bool = False  # round the output size up, as Caffe does
    p: float = 3.0  # power-mean: GeM's published p
    levels: int = 3  # regions: R-MAC's published L

    @classmethod
    def _checked(cls, name: str, value: Any) -> Any:
        if name == "size" and isinstance(value, (tuple, list)) and len(value) == 2:
            width, height = (super(Pool, cls)._checked(name, side) for side in value)
            return width if width == height else (width, height)
        return super()._checked(name, value)


@dataclass(frozen=True)
class Spatial(Part):
    """Step 2, one weight per location."""

    kind: str = "uniform"
    a: float = 2.0  # response: the norm; 1, 2, inf, or any power
    b: float = 2.0  # response: the root taken after it
    sigma: float = 1 / 6  # centre: of the shorter side; a third of the way from the centre to the border


@dataclass(frozen=True)
class Channel(Part):
    """Step 3, one weight per channel."""

    kind: str = "uniform"
    eps: float = 1e-6  # sparsity: far below 1 / (w h), the smallest share a channel can fire in


@dataclass(frozen=True)
class Norm(Part):
    """Steps 5 and 7: the power first, then the norm."""

    kind: str = "l2"
    power: float = 1.0  # 0.5 is the signed square root


@dataclass(frozen=True)
class Recipe(Part):
    """How a picture becomes a vector; see RECIPES for the published ones."""

    name: str
    pool: Pool = Pool("max", size=2, stride=2)  # VGG's own last pooling, ours to vary
    spatial: Spatial = Spatial()
    channel: Channel = Channel()
    norm: Norm = Norm()
    final: Norm = Norm()
    view: View = View()
    regional: str = ""  # rmac-regional: the fingerprint of the whitening that each region went through

    def at(self, layer: str) -> Recipe:
        """The same weights on one of the paper's layers: pool5 is conv5_3 under 2x2 max pooling, and so on."""
        if layer not in LAYERS:
            raise RecipeError(f"no layer named {layer!r}; there are: {', '.join(LAYERS)}")
        cut, pool = LAYERS[layer]
        if self.pool.kind not in ("none", "max", "sum"):  # pooling the whole map is the method itself
            if pool.kind != "none":
                raise RecipeError(f"{self.name} has a pooling of its own and goes on {cut}, not on {layer}")
            pool = self.pool
        return replace(self, view=replace(self.view, layer=cut), pool=pool)

    def sized(self, size: Size | str) -> Recipe:
        """The same recipe at another picture size."""
        size = Size.parse(size) if isinstance(size, str) else size
        return replace(self, view=replace(self.view, size=size))

    def set(self, *assignments: str) -> Recipe:
        """The recipe with fields changed: `set("a=1", "pool.stride=1", "view.size=586x586")`."""
        recipe = self
        for text in assignments:
            name, equals, value = text.partition("=")
            if not equals:
                raise RecipeError(f"{text!r} is not of the form field=value")
            recipe = _assign(recipe, _full_name(name.strip()).split("."), value.strip())
        return recipe

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dict that `from_dict` turns back into an equal recipe."""
        plain: dict[str, Any] = _plain(self)
        return plain

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Recipe:
        """The recipe that `to_dict` described; an unknown field is an error, one of a later version takes its default."""
        recipe: Recipe = _build(cls, plain)
        return recipe

    def key(self) -> str:
        """A short hash of everything but the name: equal keys make equal vectors."""
        plain = self.to_dict()
        del plain["name"]
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]

    def differences(self, other: Recipe) -> list[str]:
        """The fields (dotted, the name apart) in which two recipes differ, each as 'field: mine / theirs'."""
        mine, theirs = _flat(self.to_dict()), _flat(other.to_dict())
        return [f"{k}: {mine[k]} / {theirs[k]}" for k in mine if k != "name" and mine[k] != theirs[k]]


MAX2 = Pool("max", size=2, stride=2)
LAYERS = {
    "conv4_3": ("conv4_3", Pool("none")),
    "pool4": ("conv4_3", MAX2),
    "conv5_3": ("conv5_3", Pool("none")),
    "pool5": ("conv5_3", MAX2),
}
RESPONSE, SPARSITY = Spatial("response", a=2.0, b=2.0), Channel("sparsity")

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe("crow", MAX2, RESPONSE, SPARSITY),
        Recipe("ucrow", MAX2),
        Recipe("ucrow+sw", MAX2, RESPONSE),
        Recipe("ucrow+ssw", MAX2, channel=SPARSITY),
        Recipe("spoc", Pool("none"), Spatial("centre")),
        Recipe("mac", Pool("global-max")),
        Recipe("gem", Pool("power-mean", p=3.0)),
        Recipe("rmac", Pool("regions", levels=3), Spatial("inverse-norm")),
        Recipe("rmac-regional", Pool("regions", levels=3), regional="unfitted"),
        Recipe("crow-conv5", Pool("none"), RESPONSE, SPARSITY),
        Recipe("crow-released", MAX2, RESPONSE, Channel("sparsity-released")),
    )
}


def recipe_named(name: str) -> Recipe:
    """One of RECIPES, or an error that lists them."""
    if name not in RECIPES:
        raise RecipeError(f"no recipe named {name!r}; there are: {', '.join(RECIPES)}")
    return RECIPES[name]


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return list(value)
    return "inf" if value == math.inf else value  # JSON has no infinity


def _flat(plain: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in plain.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


def _full_name(name: str) -> str:
    """A dotted field from its last part where only one field is called so: `a` is `spatial.a`."""
    known = [k for k in _flat(Recipe("").to_dict()) if not k.startswith("view.size.")] + ["view.size"]
    matches = [k for k in known if k == name] or [k for k in known if k.endswith("." + name)]
    if len(matches) != 1:
        raise RecipeError(
            f"{'no' if not matches else 'more than one'} recipe field named {name!r}; there are: {', '.join(known)}"
        )
    return matches[0]


def _assign(part: Any, path: list[str], text: str) -> Any:
    old = getattr(part, path[0])
    new = _assign(old, path[1:], text) if path[1:] else _parse(old, path[0], text)
    return replace(part, **{path[0]: new})


def _parse(old: Any, name: str, text: str) -> Any:
    """Text as a value of the type that the field has now."""
    readers: dict[type, Callable[[str], Any]] = {
        bool: lambda t: {"true": True, "1": True, "false": False, "0": False}[t.lower()],
        int: lambda t: tuple(map(int, t.split("x"))) if "x" in t else int(t),
        tuple: lambda t: tuple(map(int, t.split("x"))) if "x" in t else int(t),
        Size: Size.parse,
    }
    try:
        return readers.get(type(old), type(old))(text)
    except RecipeError:
        raise
    except (KeyError, ValueError):
        raise RecipeError(f"{text!r} is no value for the recipe field {name!r} (now {old!r})") from None


def _build(kind: Any, plain: dict[str, Any]) -> Any:
    """A dataclass (and those inside it) from a plain dict; fields that came after it was written take their defaults."""
    names = {field.name for field in fields(kind)}
    if not isinstance(plain, dict) or not plain or not set(plain) <= names or (kind is Recipe and "name" not in plain):
        raise RecipeError(f"this is not a recipe of this version: {kind.__name__} has the fields {sorted(names)}")
    values: dict[str, Any] = {}
    for name, value in plain.items():
        default = getattr(kind, name, "")
        if is_dataclass(default):
            value = _build(type(default), value)
        elif isinstance(default, float) and value == "inf":
            value = math.inf
        values[name] = value
    return kind(**values)
