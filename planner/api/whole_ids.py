"""Requests whose ids were given as prefixes, made whole before anything looks at them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf.message import Message

from access.handlers import HandlerInterceptor, prepared
from planner.api.rules import RULES, Caller
from planner.store.database import Database
from planner.store.ids import may_be_prefix, whole_id

# Fields of requests, and of the options in them, by the kind of object that they name.
_KINDS: Mapping[str, str] = {
    "graph_id": "graph",
    "inventory_id": "inventory",
    "plan_id": "plan",
    "operation_id": "plan",
    "profile_id": "profile",
    "rates_from_profiles": "profile",
    "deployment_id": "deployment",
    "checkpoint_id": "checkpoint",
    "token_id": "token",
}
_WITH_IDS = "options"


async def complete_ids(database: Database, request: object) -> None:
    """Replaces each prefix in the request by the id that it fits. Raises InvalidArgument where it fits several.

    Asks the database only where something is shorter than an id.
    """
    if not isinstance(request, Message):
        return
    for field, content in request.ListFields():
        kind = _KINDS.get(field.name)
        if kind is not None and isinstance(content, str):
            setattr(request, field.name, await _whole(database, kind, content))
        elif kind is not None:
            content[:] = [await _whole(database, kind, text) for text in content]
        elif field.name == _WITH_IDS:
            await complete_ids(database, content)


async def _whole(database: Database, kind: str, text: str) -> str:
    if not may_be_prefix(kind, text):
        return text
    async with database.reading() as session:
        return await whole_id(session, kind, text)


class WholeIdsInterceptor(HandlerInterceptor):
    """For a server without a gate, which does it once it knows the caller."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def around(self, handler: Any, method: str) -> Any:
        rule = RULES.get(method)
        if rule is None or rule.needs is Caller.ANYONE:
            return handler
        return prepared(handler, lambda request, _: complete_ids(self._database, request))
