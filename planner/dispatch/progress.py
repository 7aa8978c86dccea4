"""Which loading progress is worth an event: daemons tell of every chunk, people read a few dozen lines."""

from __future__ import annotations

# A stage's progress is told whenever this much more of it is loaded.
SHARE = 0.05


def worth_telling(told_bytes: int | None, loaded_bytes: int, total_bytes: int) -> bool:
    """`told_bytes` is what was told of the stage last, None if nothing was. The first and the last always count."""
    if told_bytes is None:
        return True
    if loaded_bytes <= told_bytes:
        return False
    return loaded_bytes >= total_bytes or loaded_bytes - told_bytes >= total_bytes * SHARE
