"""A progress bar with images per second and the time left, on the error stream, only where a person watches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

T = TypeVar("T")


class Rate(ProgressColumn):
    """Images per second so far."""

    def render(self, task: Task) -> Text:
        """The rate of one task."""
        return Text(f"{task.speed:.1f}/s" if task.speed else "")


def track(items: Iterable[T], total: int | None, what: str) -> Iterator[T]:
    """The items as they are, a progress bar beside them."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        yield from bar.track(items, total=total, description=what)
