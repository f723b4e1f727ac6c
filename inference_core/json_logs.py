"""Log lines as JSON, for programs that collect them: with the trace, and of errors the class and place only."""

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
"""What a line may say besides its message, if its record has it."""
_FRAMES: Final = 5


class JsonFormatter(logging.Formatter):
    """Makes a line of JSON of each record.

    A record's ``user_id`` becomes a hash with the ``key``: lines about one user can be found, and name nobody. The text
    of an exception may quote a memory, and is left out.
    """

    def __init__(self, key: bytes | None = None) -> None:
        super().__init__()
        self._key = (key or token_bytes(32))[:64]

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
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
    """Has this process log to standard error as JSON, also what it is asked for over HTTP."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(key))
    logging.basicConfig(handlers=[handler], force=True)
    logging.getLogger("inference_core").setLevel(logging.INFO)
