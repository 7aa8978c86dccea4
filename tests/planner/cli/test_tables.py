"""The plan's table, without a server."""

from __future__ import annotations

import pytest
from rich.console import Console

from planner.cli.output import OutputFormat, emit, say
from planner.cli.tables import memory_bar, plan_table
from planner.cost.inventory import Device, Inventory
from planner.plan.options import BalancedMode, PlanOptions
from planner.planning import make_plan
from tests.contract.graphs import linear_chain


def shown(renderable: object, width: int = 180) -> str:
    console = Console(width=width, force_terminal=False)
    with console.capture() as captured:
        console.print(renderable)
    return captured.get()


def test_a_plan_as_a_table() -> None:
    inventory = Inventory(
        devices=tuple(Device(id=name, kind="cpu", host="h", memory_bytes=4096) for name in ("left", "right"))
    )
    plan = make_plan(linear_chain(6), "0" * 64, inventory, PlanOptions(mode=BalancedMode(num_stages=2)))
    text = shown(plan_table(plan))
    rows = [line for line in text.splitlines() if "left" in line or "right" in line]
    assert len(rows) == 2
    assert "layers.0 → layers.2" in text
    assert "chain, balanced, 2 stages, direct routing" in text
    assert "4 KiB" in text
    assert "optimal" in text


def test_memory_bars() -> None:
    assert memory_bar(0, 100).plain == "░" * 6 + "   0%"
    assert memory_bar(50, 100).plain == "█" * 3 + "░" * 3 + "  50%"
    assert memory_bar(300, 100).plain == "█" * 6 + " 300%"
    assert memory_bar(1, 0).plain.startswith("░")


def test_a_name_is_never_taken_for_markup(capsys: pytest.CaptureFixture[str]) -> None:
    device = Device(id="[bold]x[/nope] :warning:", kind="cpu", host="h", memory_bytes=1 << 30)
    plan = make_plan(linear_chain(2), "0" * 64, Inventory(devices=(device,)), PlanOptions(mode=BalancedMode()))
    emit(plan, OutputFormat.TABLE, lambda: plan_table(plan))
    say("[/nope]\x1b[31mred\x07")
    printed = capsys.readouterr()
    assert device.id in printed.out
    assert "mode balanced" in printed.out
    assert printed.err == "[/nope]\\x1b[31mred\\x07\n"
