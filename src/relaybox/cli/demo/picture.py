"""The picture at the end of the demo: what became of each order, from one service to the other."""

from __future__ import annotations

from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

LEFT, RIGHT = 38, 36  # with the arrows between them 80 columns


@dataclass
class Trail:
    """One order: what the shop did with it, how many messages were sent, and what billing made of them."""

    number: int
    item: str
    shop: list[str] = field(default_factory=list)
    sent: int = 0
    stored: int = 0
    retries: int = 0
    died: int = 0
    entries: list[str] = field(default_factory=list)

    @property
    def dropped(self) -> int:
        return self.sent - self.stored


def picture(trails: list[Trail], waiting: int, dead: int) -> RenderableType:
    grid = Table.grid()
    for _ in range(3):
        grid.add_column(no_wrap=True)
    orders = sum(bool(trail.sent) for trail in trails)
    sent, stored = sum(trail.sent for trail in trails), sum(trail.stored for trail in trails)
    entries = sum(len(trail.entries) for trail in trails)
    left = [*map(_left, trails), Text(), Text(f"{orders} orders, {waiting} events waiting", style="bold")]
    right = [*map(_right, trails), Text(), Text(f"{stored} messages, {entries} entries, {dead} dead", style="bold")]
    arrows = [Text(), *map(_arrow, trails), Text(), Text(f"  {sent} ")]
    grid.add_row(
        Panel(Group(*left), title="shop: orders, outbox", title_align="left", border_style="cyan", width=LEFT),
        Group(*arrows),
        Panel(Group(*right), title="billing: inbox, ledger", title_align="left", border_style="yellow", width=RIGHT),
    )
    return grid


def _left(trail: Trail) -> Text:
    line = Text(f"{trail.number} {trail.item:<7}", style="bold")
    for number, word in enumerate(trail.shop):
        line.append(" " if not number or word.startswith("✗") else ", ", style="not bold")
        line.append(word, style="not bold red" if word.startswith("✗") else "not bold")
    return line


def _arrow(trail: Trail) -> Text:
    return Text(f" ─{trail.sent}─► " if trail.sent else "", style="yellow" if trail.dropped else "")


def _right(trail: Trail) -> Text:
    line = Text()
    if trail.retries:
        line.append(f"↻{trail.retries} ", style="bold")
    if trail.died:
        line.append("† dead, replayed: ", style="red")
    line.append(", ".join(trail.entries))
    if trail.dropped:
        line.append(f", {'duplicate' if trail.dropped == 1 else f'{trail.dropped} duplicates'} dropped", style="yellow")
    return line
