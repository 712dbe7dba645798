"""A progress bar with images per second and the time left, on the error stream, only where a person watches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

if TYPE_CHECKING:
    from crow.search.pace import Pace

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


class Download:
    """A Report of a download: a bar where a person watches, else one line when it begins."""

    def __init__(self) -> None:
        self.said: set[str] = set()
        self.console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        self.bar = Progress(*columns, console=self.console, disable=not self.console.is_terminal, transient=True)

    def __call__(self, what: str, done: int, total: int) -> None:
        """Bytes so far of bytes in all."""
        if what not in self.said:
            self.said.add(what)
            self.console.print(what + (f" ({total / 1e6:.0f} MB)" if total else ""), highlight=False)
            self.task = self.bar.add_task(what, total=total or None)
        if total:
            self.bar.start()
            self.bar.update(self.task, completed=done)
        if done >= total:
            self.bar.stop()


@contextmanager
def follow() -> Iterator[Callable[[Pace], None]]:
    """A bar for a sync, which knows itself how long it will still take; nothing where nobody watches."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[left]}"))
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("reading folders", total=None, left="")

        def show(pace: Pace) -> None:
            left = "" if pace.left is None else f"{timedelta(seconds=round(pace.left))} left"
            bar.update(task, description=pace.doing, completed=pace.done, total=pace.total, left=left)

        yield show
