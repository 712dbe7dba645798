"""Step 6: PCA, whitening or not, learned on other pictures; then step 7, the final norm. No torch in here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from crow.files import replacing
from crow.framework.normalize import Array, normalize
from crow.recipe import Norm, Recipe, RecipeError

Vectors = NDArray[np.floating[Any]]
CHUNK = 4096  # rows in float64 at a time: 16 MB at 512 channels
NO_VARIANCE = 1e-10  # of the largest variance: below it an axis holds the rounding of float32, never a picture
ROUNDING = 2.0**-48  # of the mean's squared length: float32 rounding alone makes this much variance


class WhiteningError(ValueError):
    """A whitening that cannot be learned, read, or applied here."""


def reduce(v: Array, mean: Array, projection: Array, final: Norm) -> Array:
    """(n, K), (K,), (K, d) -> (n, d): steps 6 and 7, on NumPy arrays and torch tensors alike."""
    if v.ndim != 2 or v.shape[1] != len(mean):
        raise WhiteningError(f"this whitening takes vectors (n, {len(mean)}), not {tuple(v.shape)}")
    return normalize((v - mean) @ projection, final)


@dataclass(frozen=True, eq=False)
class Moments:
    """Count, mean and scatter of vectors: exact, mergeable, never more than a chunk in float64."""

    count: int = 0
    mean: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    scatter: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))

    def add(self, rows: Vectors) -> Moments:
        """These moments and those of (n, K) more rows."""
        rows = np.asarray(rows, np.float64)
        bad = ~np.isfinite(rows).all(-1)
        if rows.ndim != 2 or bad.any():
            where = (
                f"row {self.count + int(bad.argmax())} holds NaN or infinity"
                if rows.ndim == 2
                else f"shape {rows.shape}"
            )
            raise WhiteningError(f"a whitening is learned from finite vectors (n, K): {where}")
        if not len(rows):
            return self
        mean = rows.mean(0)
        centred = rows - mean
        return self.merge(Moments(len(rows), mean, centred.T @ centred))

    def merge(self, other: Moments) -> Moments:
        """The moments of both sets together (Chan, Golub and LeVeque)."""
        if not self.count or not other.count:
            return self if self.count else other
        if len(self.mean) != len(other.mean):
            raise WhiteningError(f"vectors of {len(self.mean)} and of {len(other.mean)} dimensions do not mix")
        count = self.count + other.count
        step = other.mean - self.mean
        scatter = self.scatter + other.scatter + np.outer(step, step) * (self.count * other.count / count)
        return Moments(count, self.mean + step * (other.count / count), scatter)


@dataclass(frozen=True, eq=False)
class Whitening:
    """A learned reduction: `whitening(vectors)` maps (n, K) to (n, d) unit rows."""

    mean: NDArray[np.float64]  # (K,)
    projection: NDArray[np.float64]  # (K, d): the axes, each divided by its standard deviation where whitened
    variances: NDArray[np.float64]  # (d,)
    count: int  # how many vectors it was learned from
    whitened: bool
    recipe: Recipe | None  # what made the vectors it was learned from
    source: str = ""  # where those pictures came from, in words

    @classmethod
    def fit(
        cls,
        vectors: Vectors | Iterable[Vectors],
        dim: int | None = None,
        recipe: Recipe | None = None,
        whiten: bool = True,
        source: str = "",
    ) -> Whitening:
        """Learn from (n, K) vectors, or from an iterable of such chunks; no `dim` keeps every axis that varies."""
        moments = Moments()
        for part in [vectors] if isinstance(vectors, np.ndarray) else vectors:
            for start in range(0, len(part), CHUNK):
                moments = moments.add(part[start : start + CHUNK])
        return cls.from_moments(moments, dim, recipe, whiten, source)

    @classmethod
    def from_moments(
        cls,
        moments: Moments,
        dim: int | None = None,
        recipe: Recipe | None = None,
        whiten: bool = True,
        source: str = "",
    ) -> Whitening:
        """Learn from moments gathered elsewhere, in pieces or on several machines."""
        if moments.count < 2:
            raise WhiteningError(f"a whitening is learned from at least 2 vectors, not {moments.count}")
        variances, axes = np.linalg.eigh(moments.scatter / (moments.count - 1))
        variances, axes = variances[::-1], axes[:, ::-1]
        least = NO_VARIANCE * variances[0] + ROUNDING * moments.mean @ moments.mean
        rank = min(int((variances > least).sum()), moments.count - 1)
        if not rank:
            raise WhiteningError(f"these {moments.count} vectors are all alike: there is nothing to learn from them")
        dim = rank if dim is None else dim
        if not 1 <= dim <= rank:
            raise WhiteningError(
                f"dim {dim} is not between 1 and the rank {rank} of these {moments.count} vectors of {len(moments.mean)} dimensions"
            )
        variances, axes = variances[:dim], axes[:, :dim]
        axes = axes * np.sign(axes[np.abs(axes).argmax(0), np.arange(dim)])  # one sign on every machine
        projection = axes / np.sqrt(variances) if whiten else axes
        return cls(
            moments.mean, np.ascontiguousarray(projection), variances.copy(), moments.count, whiten, recipe, source
        )

    @property
    def dim(self) -> int:
        """d, the length of what comes out."""
        return int(self.projection.shape[1])

    @property
    def final(self) -> Norm:
        """The norm of step 7."""
        return self.recipe.final if self.recipe else Norm()

    @cached_property
    def fingerprint(self) -> str:
        """A short hash of everything in it; equal fingerprints make equal vectors."""
        return _digest(self._arrays(), self._made())[:16]

    def to_dim(self, dim: int) -> Whitening:
        """The same whitening with only its first `dim` axes."""
        if not 1 <= dim <= self.dim:
            raise WhiteningError(f"dim {dim} is not between 1 and {self.dim}, which is what this whitening holds")
        kept = np.ascontiguousarray(self.projection[:, :dim])
        return Whitening(
            self.mean, kept, self.variances[:dim].copy(), self.count, self.whitened, self.recipe, self.source
        )

    def __call__(self, vectors: Vectors, recipe: Recipe | None = None) -> NDArray[np.float32]:
        """(n, K) -> (n, d), unit rows; vectors of another recipe (another size alone apart) are refused."""
        if recipe is not None and self.recipe is not None:
            differences = [d for d in self.recipe.differences(recipe) if not d.startswith("view.size.")]
            if differences:
                raise WhiteningError(
                    f"this whitening was learned on {self.recipe.name} vectors and these are {recipe.name} ({'; '.join(differences)})"
                )
        return self.apply(vectors)

    def apply(self, vectors: Vectors) -> NDArray[np.float32]:
        """(n, K) -> (n, d): centred, projected, normalised; float64 inside, a chunk at a time."""
        out = np.empty((len(vectors), self.dim), np.float32)
        for start in range(0, len(vectors), CHUNK):
            rows = np.asarray(vectors[start : start + CHUNK], np.float64)
            out[start : start + CHUNK] = reduce(rows, self.mean, self.projection, self.final)
        return out

    def to_bytes(self) -> bytes:
        """A safetensors file in memory, how it was made inside; the same whitening gives the same bytes."""
        arrays, made = self._arrays(), self._made()
        data: bytes = save(arrays, {"made": f"{_digest(arrays, made)} {made}"})
        return data

    def _arrays(self) -> dict[str, NDArray[np.float64]]:
        return {"mean": self.mean, "projection": self.projection, "variances": self.variances}

    def _made(self) -> str:
        recipe = self.recipe.to_dict() if self.recipe else None
        made = {"count": self.count, "whitened": self.whitened, "recipe": recipe, "source": self.source}
        return json.dumps(made, sort_keys=True)

    def save(self, path: str | Path) -> None:
        """Write it as safetensors, whole or not at all."""
        with replacing(Path(path)) as half:
            half.write_bytes(self.to_bytes())

    @classmethod
    def load(cls, path: str | Path) -> Whitening:
        """Read what `save` wrote."""
        if not Path(path).is_file():
            raise WhiteningError(f"{path}: no such file")
        try:
            return cls.from_bytes(Path(path).read_bytes())
        except (WhiteningError, RecipeError) as error:
            raise WhiteningError(f"{path}: {error}") from None

    @classmethod
    def from_bytes(cls, data: bytes) -> Whitening:
        """What `to_bytes` made."""
        try:
            arrays = load(data)
            header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
            digest, _, made = header["__metadata__"]["made"].partition(" ")
        except (SafetensorError, KeyError, ValueError) as error:
            raise WhiteningError(f"not a whitening that crow wrote, or only a part of one ({error})") from None
        if _digest(arrays, made) != digest:
            raise WhiteningError("damaged: what it holds is not what was written")
        fields = json.loads(made)
        fields["recipe"] = Recipe.from_dict(fields["recipe"]) if fields["recipe"] else None
        return cls(**arrays, **fields)


def _digest(arrays: dict[str, NDArray[np.float64]], made: str) -> str:
    """A hash of everything in a whitening."""
    whole = hashlib.sha256(made.encode())
    for name in sorted(arrays):
        whole.update(f"{name} {arrays[name].shape}".encode() + arrays[name].tobytes())
    return whole.hexdigest()
