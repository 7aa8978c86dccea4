"""Environment variables that no setting reads, and that were meant for one."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable

# Of equal letters among both names. Variables of others, as those of a Kubernetes service that is called like the
# prefix, have less in common with any setting.
_SIMILARITY = 0.85


def misspelt(prefix: str, settings: Iterable[str]) -> dict[str, str]:
    """Variables that are set and begin with `prefix`, each with the one that was meant; `settings` without prefix."""
    known = {f"{prefix}{name}".upper() for name in settings}
    unread = sorted(name for name in os.environ if name.upper().startswith(prefix) and name.upper() not in known)
    meant = {name: difflib.get_close_matches(name.upper(), known, 1, _SIMILARITY) for name in unread}
    return {name: close[0] for name, close in meant.items() if close}
