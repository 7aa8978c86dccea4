"""Whether orders of passes end where an edge holds few messages: a sender with no free buffer waits for its receiver.

`planner/schedule/check_training.py` proves the same of a plan's actions, sums of gradients included; the search has no
plan yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from planner.partition.training.pipeline_order import Pass, Step
from planner.partition.training.step_graph import TrainingStep

# Of each edge in each direction, as the check of training schedules has it.
BUFFERS = 2

# Whether it carries gradients, the stages at its ends and the devices of their copies.
_Channel = tuple[bool, int, int, int, int]


def ends(step: TrainingStep, orders: Mapping[int, Sequence[Step]], buffers: int = BUFFERS) -> bool:
    """Linear in the passes and their messages."""
    channels = _Channels(step)
    messages = {
        device: [message for one in order for message in channels.messages(one)] for device, order in orders.items()
    }
    position, messages_of_channel = dict.fromkeys(messages, 0), dict[_Channel, int]()

    def can_go_on(device: int) -> bool:
        """Sends or takes the device's next message, if it can."""
        if position[device] == len(messages[device]):
            return False
        is_sent, channel = messages[device][position[device]]
        count = messages_of_channel.get(channel, 0)
        if (count >= buffers and channel[-1] != channel[-2]) if is_sent else not count:
            return False
        messages_of_channel[channel] = count + (1 if is_sent else -1)
        position[device] += 1
        return True

    progress = True
    while progress:
        progress = False
        for device in messages:
            while can_go_on(device):
                progress = True
    return all(position[device] == len(own) for device, own in messages.items())


class _Channels:
    def __init__(self, step: TrainingStep) -> None:
        self._copies = step.copies
        self._sources, self._targets = _by_end(step, step.edges)
        self._owed, self._awaited = _by_end(step, step.gradient_edges)

    def messages(self, step: Step) -> Iterator[tuple[bool, _Channel]]:
        """(whether it is sent, over which channel) in the order of the other end's stage."""
        if step.kind is Pass.BACKWARD_WEIGHT:
            return
        back = step.kind is not Pass.FORWARD
        received, sent = (self._awaited, self._owed) if back else (self._sources, self._targets)
        for other in received[step.stage]:
            yield False, self._channel(back, other, step.stage, step.microbatch)
        for other in sent[step.stage]:
            yield True, self._channel(back, step.stage, other, step.microbatch)

    def _channel(self, back: bool, source: int, target: int, microbatch: int) -> _Channel:
        own, others = self._copies[source], self._copies[target]
        return back, source, target, own[microbatch % len(own)], others[microbatch % len(others)]


def _by_end(step: TrainingStep, edges: Sequence[tuple[int, int]]) -> tuple[list[list[int]], list[list[int]]]:
    """By stage, where its edges come from, and where they lead."""
    sources: list[list[int]] = [[] for _ in step.stages]
    targets: list[list[int]] = [[] for _ in step.stages]
    for source, target in sorted(edges):
        sources[target].append(source)
        targets[source].append(target)
    return sources, targets
