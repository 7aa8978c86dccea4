"""Log lines: as JSON or for people, from the least level on, on standard error."""

from __future__ import annotations

import contextlib
import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import structlog

from planner.api.logs import configure_logs


@contextmanager
def logs(level: str, form: str) -> Iterator[io.StringIO]:
    """What the block writes; the process's own configuration of logs comes back afterwards."""
    before = structlog.get_config()
    root, access = logging.getLogger(), logging.getLogger("access")
    handlers, root_level, access_level = root.handlers[:], root.level, access.level
    root.handlers.clear()
    with contextlib.redirect_stderr(io.StringIO()) as stream:
        configure_logs(level, form)
        yield stream
    structlog.configure(**before)
    root.handlers[:] = handlers
    root.setLevel(root_level)
    access.setLevel(access_level)


def lines(written: io.StringIO) -> list[str]:
    return written.getvalue().splitlines()


def stumble(log: structlog.BoundLogger, password: str) -> None:
    try:
        raise ValueError("unforeseen")
    except ValueError as error:
        log.error("incident", exc_info=error)


@pytest.mark.parametrize("form", ["json", "console"])
def test_no_secret_is_written_wherever_it_stands(form: str) -> None:
    with logs("info", form) as written:
        url = "postgresql://me:hunter2@db/planner"
        log = structlog.get_logger("test")
        log.info(f"using {url}", url=url, password="hunter2")
        try:
            raise ValueError(f"cannot reach {url}")
        except ValueError as error:
            log.error("incident", exc_info=error)
        logging.getLogger("library").warning("lost %s", url)
    assert "hunter2" not in written.getvalue()
    assert written.getvalue().count("me:***@db/planner") >= 4


def test_json_is_one_object_per_event() -> None:
    with logs("info", "json") as written:
        log = structlog.get_logger("test")
        log.info("plan failed", operation_id="plan-1", message="größe")
        log.debug("too small to tell")
        stumble(log, "hunter2")
    refusal, incident = (json.loads(line) for line in lines(written))
    assert refusal.pop("timestamp").endswith("Z")
    assert refusal == {"event": "plan failed", "level": "info", "operation_id": "plan-1", "message": "größe"}
    assert (incident["level"], incident["exception"][0]["exc_type"]) == ("error", "ValueError")


@pytest.mark.parametrize(
    ("level", "told"),
    [
        ("debug", ["debug", "info", "warning", "error"]),
        ("info", ["info", "warning", "error"]),
        ("warning", ["warning", "error"]),
        ("error", ["error"]),
    ],
)
def test_less_than_the_least_level_is_not_told(level: str, told: list[str]) -> None:
    with logs(level, "json") as written:
        for name in ("debug", "info", "warning", "error"):
            getattr(structlog.get_logger("test"), name)("x")
    assert [json.loads(line)["level"] for line in lines(written)] == told


@pytest.mark.parametrize("form", ["console", "json"])
def test_a_traceback_does_not_show_the_values_of_variables(form: str) -> None:
    with logs("info", form) as written:
        stumble(structlog.get_logger("test"), "hunter2")
    text = written.getvalue()
    assert "incident" in text
    assert "unforeseen" in text
    assert "stumble" in text
    assert "hunter2" not in text


@pytest.mark.parametrize(("level", "told"), [("debug", ["warning"]), ("error", [])])
def test_warnings_of_libraries_take_the_same_way(level: str, told: list[str]) -> None:
    with logs(level, "json") as written:
        logging.getLogger("alembic").info("chatter")
        logging.getLogger("alembic").warning("beware")
    assert lines(written) == ["WARNING alembic beware"] * len(told)
