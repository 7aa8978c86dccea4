"""Lets callers in by the rules, remembers who made what, and writes down who did what. Installed where there is TLS."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from access.handlers import HandlerInterceptor, wrapped
from planner.api.audit_trail import AuditTrail
from planner.api.principals import CALLER, Context, Principal, Principals
from planner.api.rules import RULES, Caller, Rule, Scope
from planner.api.whole_ids import complete_ids
from planner.errors import Forbidden, PlannerError, Unauthenticated
from planner.store.database import Database
from planner.store.owners import add_owner, owners_of

_CALLER_DIGITS = 16


class GateInterceptor(HandlerInterceptor):
    """Inside the one that turns errors into statuses."""

    def __init__(self, database: Database, principals: Principals, trail: AuditTrail) -> None:
        self._database = database
        self._principals = principals
        self._trail = trail

    def around(self, handler: Any, method: str) -> Any:
        rule = RULES.get(method)
        if rule is not None and rule.needs is Caller.ANYONE:
            return handler
        return wrapped(
            handler,
            lambda call: self._one_answer(call, method, rule),
            lambda call: self._many_answers(call, method, rule),
        )

    def _one_answer(self, call: Callable[..., Any], method: str, rule: Rule | None) -> Callable[..., Any]:
        async def answer(request: Any, context: Context) -> Any:
            visit = _Visit(method, rule, request, context)
            try:
                await self._admit(visit)
                _make_own(request, visit.principal)
                reply = await call(request, context)
                await self._keep_owner(visit, reply)
            except BaseException as error:
                self._write_down(visit, error)
                raise
            self._write_down(visit, None)
            return reply

        return answer

    def _many_answers(self, call: Callable[..., Any], method: str, rule: Rule | None) -> Callable[..., Any]:
        """Who loses the right while a stream goes on gets nothing more of it."""

        async def answers(request: Any, context: Context) -> AsyncIterator[Any]:
            visit = _Visit(method, rule, request, context)
            try:
                await self._admit(visit)
                async for item in call(request, context):
                    await self._admit(visit)
                    await self._keep_owner(visit, getattr(item, "profile", None))
                    yield item
            except BaseException as error:
                self._write_down(visit, error)
                raise
            self._write_down(visit, None)

        return answers

    async def _admit(self, visit: _Visit) -> None:
        """Raises Unauthenticated or Forbidden."""
        principal = visit.principal = await self._principals.identify(visit.context)
        CALLER.set(principal.name)
        structlog.contextvars.bind_contextvars(principal=principal.name)
        rule = visit.rule
        if rule is None:
            raise Forbidden(f"{visit.name} has no rule that says who may call it")
        changes_others = Scope.ADMIN in principal.rights and isinstance(rule.needs, Scope)
        changes_others |= bool(rule.owned) and Scope.OPERATE in principal.rights
        if not changes_others and not _allows(rule, principal):
            raise _refusal(visit, principal)
        # Only now: whoever may not call learns no ids.
        await complete_ids(self._database, visit.request)
        if rule.owned and not changes_others:
            async with self._database.reading() as session:
                owners = await owners_of(session, rule.owned, visit.subject)
            if principal.name not in owners:
                raise Forbidden(
                    f"{rule.owned} {visit.subject[:80]!r} is not {principal.name}'s; ask its owner, or whoever holds a "
                    f"token with the scope {Scope.OPERATE.value}"
                )

    async def _keep_owner(self, visit: _Visit, reply: Any) -> None:
        rule, object_id = visit.rule, str(getattr(reply, "id", ""))
        if rule is None or not rule.creates or not object_id:
            return
        assert visit.principal is not None
        visit.made_id, owner, kind = object_id, visit.principal.name, rule.creates

        async def keep(session: AsyncSession) -> None:
            await add_owner(session, kind, object_id, owner, datetime.now(UTC))

        await self._database.persist(keep)

    def _write_down(self, visit: _Visit, error: BaseException | None) -> None:
        """Calls that change something, and whatever a known caller was refused; who is unknown is only logged."""
        refused = isinstance(error, Forbidden)
        if visit.principal is None or not (refused or (visit.rule is not None and visit.rule.audited)):
            return
        outcome = "OK" if error is None else error.reason if isinstance(error, PlannerError) else "CANCELLED"
        if isinstance(error, Exception) and not isinstance(error, PlannerError):
            outcome = PlannerError.reason
        self._trail.record(
            principal=visit.principal.name,
            method=visit.name,
            subject=visit.subject,
            peer=visit.context.peer(),
            outcome=outcome,
        )


class _Visit:
    """One call: who, what, about what."""

    def __init__(self, method: str, rule: Rule | None, request: Any, context: Context) -> None:
        self.name = method.rpartition("/")[2]
        self.rule = rule
        self.request = request
        self.context = context
        self.principal: Principal | None = None
        self.made_id = ""

    @property
    def subject(self) -> str:
        """The id of what was made, or of what the request is about."""
        if self.made_id or self.rule is None or not self.rule.subject:
            return self.made_id
        return str(getattr(self.request, self.rule.subject))


def _make_own(request: Any, principal: Principal | None) -> None:
    """Whoever learns another's request id neither gets what that one made nor takes the id from it."""
    request_id = str(getattr(request, "request_id", ""))
    if principal is not None and request_id:
        caller = hashlib.sha256(principal.name.encode()).hexdigest()[:_CALLER_DIGITS]
        request.request_id = f"{caller}/{request_id}"


def _allows(rule: Rule, principal: Principal) -> bool:
    return rule.needs in principal.rights or (rule.daemons and Caller.DAEMON in principal.rights)


def _refusal(visit: _Visit, principal: Principal) -> PlannerError:
    assert visit.rule is not None
    needs = visit.rule.needs
    if needs is Caller.DAEMON:
        return Forbidden(f"{visit.name} is for daemons: {principal.name} has no daemon's certificate")
    if not principal.rights:
        return Unauthenticated(
            "this planner asks for a token: name its file by PLANNER_TOKEN_FILE, or by token_file in the config file; "
            "`planner-cli tokens create` makes one"
        )
    return Forbidden(f"{visit.name} needs a token with the scope {needs.value}, which {principal.name} does not have")
