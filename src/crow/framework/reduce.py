"""Step 6: PCA, whitening or not, learned on other pictures; then step 7, the final norm. No torch in here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from crow.framework.normalize import normalize
from crow.recipe import Norm, Recipe

Vectors = NDArray[np.floating[Any]]
CHUNK = 4096  # rows in float64 at a time: 16 MB at 512 channels
NO_VARIANCE = 1e-10  # of the largest variance; float32 vectors carry noise of about 1e-14 of it


class WhiteningError(ValueError):
    """A whitening that cannot be learned, read, or applied here."""


@dataclass
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
        return self.merge(Moments(len(rows), mean, (rows - mean).T @ (rows - mean)))

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
        chunks = _chunks(vectors) if isinstance(vectors, np.ndarray) else vectors
        moments = Moments()
        for chunk in chunks:
            moments = moments.add(chunk)
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
        rank = min(int((variances > NO_VARIANCE * variances[0]).sum()) if variances[0] > 0 else 0, moments.count - 1)
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
    def fingerprint(self) -> str:
        """A short hash of everything in it; equal fingerprints make equal vectors."""
        return hashlib.sha256(self.to_bytes()).hexdigest()[:16]

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
        if vectors.ndim != 2 or vectors.shape[1] != len(self.mean):
            raise WhiteningError(f"this whitening takes vectors (n, {len(self.mean)}), not {vectors.shape}")
        out = np.empty((len(vectors), self.dim), np.float32)
        final = self.recipe.final if self.recipe else Norm()
        for start in range(0, len(vectors), CHUNK):
            rows = np.asarray(vectors[start : start + CHUNK], np.float64)
            out[start : start + CHUNK] = normalize((rows - self.mean) @ self.projection, final)
        return out

    def to_bytes(self) -> bytes:
        """A safetensors file in memory, how it was made inside; the same whitening gives the same bytes."""
        made = {
            "crow": "whitening 1",
            "count": self.count,
            "whitened": self.whitened,
            "recipe": self.recipe.to_dict() if self.recipe else None,
            "source": self.source,
        }
        arrays = {"mean": self.mean, "projection": self.projection, "variances": self.variances}
        data: bytes = save(arrays, {"made": json.dumps(made, sort_keys=True)})
        return data

    def save(self, path: str | Path) -> None:
        """Write it as safetensors, whole or not at all."""
        target = Path(path)
        half = target.with_name(f".{target.name}.half")
        half.write_bytes(self.to_bytes())
        half.replace(target)

    @classmethod
    def load(cls, path: str | Path) -> Whitening:
        """Read what `save` wrote."""
        if not Path(path).is_file():
            raise WhiteningError(f"{path}: no such file")
        try:
            return cls.from_bytes(Path(path).read_bytes())
        except WhiteningError as error:
            raise WhiteningError(f"{path}: {error}") from None

    @classmethod
    def from_bytes(cls, data: bytes) -> Whitening:
        """What `to_bytes` made."""
        try:
            arrays = load(data)
            size = int.from_bytes(data[:8], "little")
            made = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["made"])
            recipe = Recipe.from_dict(made["recipe"]) if made["recipe"] else None
            mean, projection, variances = arrays["mean"], arrays["projection"], arrays["variances"]
            return cls(mean, projection, variances, made["count"], made["whitened"], recipe, made["source"])
        except (SafetensorError, KeyError, ValueError) as error:
            raise WhiteningError(f"not a whitening that crow wrote ({error})") from None


def _chunks(vectors: Vectors) -> Sequence[Vectors]:
    return [vectors[start : start + CHUNK] for start in range(0, len(vectors), CHUNK)]
