"""Logs: one line per event on standard error, for people or as JSON."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

from planner.redaction import without_secrets


def configure_logs(level: str, form: str) -> None:
    """`level` is "debug", "info", "warning" or "error"; `form` is "console" or "json".

    Tracebacks come without the values of variables: to render those of a request holds up the event loop for seconds,
    and some are nobody else's business.
    """
    processors: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if form == "json":
        frames = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        processors += [structlog.processors.ExceptionRenderer(frames), structlog.processors.JSONRenderer()]
    else:
        traceback = structlog.dev.plain_traceback
        processors.append(structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=traceback))
    processors.append(_without_secrets)
    least = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    # Libraries' own warnings take the same way out.
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter("%(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=max(least, logging.WARNING), handlers=[handler])
    logging.getLogger("access").setLevel(least)


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return without_secrets(super().format(record))


def _without_secrets(_logger: object, _method: str, line: Any) -> Any:
    """The last processor: it sees the line as it is written, with its traceback."""
    return without_secrets(line)
