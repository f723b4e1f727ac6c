"""Log lines as JSON, for log collectors: with the trace, but only the class and the location of errors."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from hashlib import blake2b
from secrets import token_bytes
from traceback import extract_tb
from typing import Any, Final

from inference_core.observing import traceparent

_FIELDS: Final = ("method", "route", "status", "seconds", "key_id")
"""Attributes that a line takes over from its record, if present."""
_FRAMES: Final = 5


class JsonFormatter(logging.Formatter):
    """Formats each record as one line of JSON.

    A record's ``user_id`` becomes a hash with the ``key`` (by default a random one), so that the lines about a user can
    be found, but name nobody. The text of an exception that was logged with its traceback is left out, because it may
    quote a memory; messages are logged as they are.
    """

    def __init__(self, key: bytes | None = None) -> None:
        super().__init__()
        self._key = (key or token_bytes(32))[:64]

    def format(self, record: logging.LogRecord) -> str:
        """The JSON of ``record``, without a line end."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if parent := traceparent():
            _, line["trace_id"], line["span_id"], _ = parent.split("-")
        line |= {name: getattr(record, name) for name in _FIELDS if hasattr(record, name)}
        if user := getattr(record, "user_id", None):
            line["user"] = blake2b(str(user).encode(errors="replace"), key=self._key, digest_size=8).hexdigest()
        if record.exc_info and record.exc_info[0]:
            line["error"] = record.exc_info[0].__name__
            frames = extract_tb(record.exc_info[2])[-_FRAMES:]
            line["at"] = [f"{one.filename}:{one.lineno} {one.name}" for one in frames]
        return json.dumps(line, ensure_ascii=False, default=str)


def use_json_logs(key: bytes | None = None) -> None:
    """Makes this process log to standard error as JSON, including a line for each HTTP request that it serves."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(key))
    logging.basicConfig(handlers=[handler], force=True)
    logging.getLogger("inference_core").setLevel(logging.INFO)
