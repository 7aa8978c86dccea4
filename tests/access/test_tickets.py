"""Tickets: what opens a deployment, and every way in which a ticket may be wrong."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from access.errors import AccessError
from access.tickets import check_ticket, deployment_secret, issue_ticket, purpose_key
from tests.random_examples import random_examples

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECRET = deployment_secret(bytes(32), "dep-1")


def issue(deployment_id: str = "dep-1", holder: str = "alice", secret: bytes = SECRET) -> str:
    return issue_ticket(secret, deployment_id=deployment_id, holder=holder, expires_at=NOW + timedelta(minutes=1))


def check(ticket: str, *, holder: str = "alice", now: datetime = NOW, deployment_id: str = "dep-1") -> None:
    check_ticket(SECRET, ticket, deployment_id=deployment_id, holder=holder, now=now)


def test_its_holder_uses_a_ticket_until_it_expires() -> None:
    check(issue())
    check(issue(), now=NOW + timedelta(minutes=1))
    with pytest.raises(AccessError, match="expired at 00:01:00 UTC"):
        check(issue(), now=NOW + timedelta(minutes=1, seconds=1))


def test_a_stolen_ticket_is_worth_nothing_with_another_certificate() -> None:
    with pytest.raises(AccessError, match="another certificate"):
        check(issue(), holder="mallory")


def test_a_ticket_opens_one_deployment() -> None:
    other = deployment_secret(bytes(32), "dep-2")
    with pytest.raises(AccessError, match="none of deployment dep-1"):
        check(issue("dep-2", secret=other))
    with pytest.raises(AccessError, match="none of deployment dep-1"):
        check(issue("dep-1", secret=other))
    with pytest.raises(AccessError, match="not dep-1"):
        check(issue("dep-2"))


def test_a_ticket_for_something_else_sends_no_microbatches(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("access.tickets.RUN", "watch")
        for_another_use = issue()
    with pytest.raises(AccessError, match="the ticket is for watch of dep-1"):
        check(for_another_use)


def test_without_a_ticket_nothing_opens() -> None:
    with pytest.raises(AccessError, match="asks for a ticket"):
        check("")


@random_examples(50)
@given(st.binary(max_size=200), st.booleans())
def test_nothing_made_up_is_a_ticket(raw: bytes, has_form: bool) -> None:
    ticket = f"{base64.urlsafe_b64encode(raw).decode()}." if has_form else raw.decode("latin-1")
    with pytest.raises(AccessError):
        check(ticket)


@random_examples(50)
@given(st.data())
def test_no_changed_ticket_is_one(data: st.DataObject) -> None:
    ticket = issue()
    position = data.draw(st.integers(0, len(ticket) - 1))
    changed = ticket[:position] + chr(data.draw(st.integers(0, 127))) + ticket[position + 1 :]
    body, mac = (base64.urlsafe_b64decode(part) for part in ticket.split("."))
    try:
        same = [base64.urlsafe_b64decode(part) for part in changed.split(".")] == [body, mac]
    except ValueError:
        same = False
    if not same:
        with pytest.raises(AccessError):
            check(changed)


def test_keys_differ_by_deployment_and_purpose() -> None:
    keys = {purpose_key(deployment_secret(bytes(32), name), use) for name in ("dep-1", "dep-2") for use in ("a", "b")}
    assert len(keys) == 4
