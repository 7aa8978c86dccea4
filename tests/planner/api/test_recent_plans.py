"""The plans that were asked for last are kept, and no more of them than there is room for."""

from __future__ import annotations

from planner.api.recent_plans import RecentPlans


def test_what_was_not_asked_for_the_longest_makes_room() -> None:
    plans = RecentPlans(most_bytes=10)
    plans.keep("a", b"aaaa")
    plans.keep("b", b"bbbb")
    assert plans.get("a") == b"aaaa"
    plans.keep("c", b"cccc")
    assert [plans.get(plan) for plan in "abc"] == [b"aaaa", None, b"cccc"]
    plans.keep("d", b"dddddddddd")
    assert [plans.get(plan) for plan in "acd"] == [None, None, b"d" * 10]


def test_what_is_larger_than_the_room_is_not_kept_and_costs_none() -> None:
    plans = RecentPlans(most_bytes=10)
    plans.keep("a", b"aaaa")
    plans.keep("large", b"l" * 11)
    assert (plans.get("large"), plans.get("a")) == (None, b"aaaa")
    # Stored anew under its id, it counts once.
    plans.keep("a", b"aaaaa")
    plans.keep("b", b"bbbbb")
    assert (plans.get("a"), plans.get("b")) == (b"aaaaa", b"bbbbb")


def test_what_is_forgotten_leaves_its_room() -> None:
    plans = RecentPlans(most_bytes=4)
    plans.keep("a", b"aaaa")
    plans.forget("a")
    plans.forget("unknown")
    assert plans.get("a") is None
    plans.keep("b", b"bb")
    plans.keep("c", b"cc")
    assert (plans.get("b"), plans.get("c")) == (b"bb", b"cc")
