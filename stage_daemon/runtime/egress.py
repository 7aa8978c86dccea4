"""Where results wait to go back to clients, in the order of the inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from queue import Queue

from stage_daemon.transport.parcel import Item, MicrobatchFailure
from stage_daemon.transport.streams import Copies, moved


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """`items` are the graph's non-constant outputs in order, or what its session chose; none with a failure."""

    session_id: int
    sequence: int
    items: tuple[Item, ...] = ()
    failure: MicrobatchFailure | None = None


class Egress:
    """Bounded: results that go by the supervisor hold the pipeline while it does not take them.

    `choose` leaves of each what its session wants. `give_directly` is offered it first, on the device, and is false for
    those that go by the supervisor, which `copies` bring from there.
    """

    def __init__(
        self,
        max_waiting: int,
        give_directly: Callable[[Result], bool] = lambda result: False,
        choose: Callable[[Result], Result] = lambda result: result,
        copies: Copies | None = None,
    ) -> None:
        self._waiting: Queue[Result | None] = Queue(max_waiting)
        self._give_directly = give_directly
        self._choose = choose
        self._copies = copies

    def give(self, result: Result) -> None:
        """Blocks while full."""
        selection = self._choose(result)
        if self._give_directly(selection):
            return
        if self._copies is not None:
            selection = replace(selection, items=moved(selection.items, self._copies.to_host))
        self._waiting.put(selection)

    def end(self) -> None:
        self._waiting.put(None)

    def take(self) -> Result | None:
        """Waits for the next; None once all is over."""
        return self._waiting.get()
