"""What a guard does with secrets in texts, JSON data and records."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from inference_core import Guard, MemoryCategory, MemoryRecord, MemorySource, MemoryType
from inference_core.errors import ConfigurationError, SecretFound
from inference_core.memory.redaction import told_error

KEY = "AKIA" + "IOSFODNN7EXAMPLE"
GONE = "[redacted: aws_access_key]"
PERSONAL = "ada@example.org"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
RECORD = MemoryRecord(
    id="m1",
    content="Lives in Rome",
    memory_type=MemoryType.FACTS,
    category=MemoryCategory.SEMANTIC,
    namespace=("ada", "semantic"),
    created_at=NOW,
    updated_at=NOW,
    tags=("home",),
    extra_metadata={"city": ["Rome", 1, None]},
)


class Names:
    """Finds one name, and something empty."""

    def find(self, text: str) -> Iterable[tuple[int, int, str]]:
        at = text.find("Ada")
        return [(at, at + 3, "person"), (0, 0, "nothing")] if at >= 0 else []


def test_each_policy_does_what_it_says() -> None:
    text = f"{KEY} of {PERSONAL}"
    assert Guard().text(text) == f"{GONE} of {PERSONAL}"
    assert Guard("off").text(text) == text
    assert Guard(pii="redact").text(text) == f"{GONE} of [redacted: email_address]"
    Guard().refuse(text)
    Guard("reject").refuse(PERSONAL)
    with pytest.raises(SecretFound, match="aws_access_key") as caught:
        Guard("reject", pii="redact").refuse({"a": [text]})
    assert caught.value.kinds == ("aws_access_key",)
    assert KEY not in str(caught.value)
    with pytest.raises(SecretFound, match="email_address"):
        Guard(pii="reject").refuse(text)


def test_the_argument_of_a_store_is_a_policy_or_a_guard() -> None:
    own = Guard(pii="redact")
    assert (Guard.of(own), Guard.of("off"), Guard.of(None)) == (own, Guard("off"), Guard())
    assert Guard("off").is_off
    assert not Guard("off", redactor=Names()).is_off
    for wrong in ({"secrets": "drop"}, {"pii": True}):
        with pytest.raises(ConfigurationError, match="must be one of redact, reject, off"):
            Guard(**wrong)  # pyright: ignore[reportArgumentType]


def test_what_a_redactor_finds_is_redacted_too() -> None:
    guard = Guard("reject", redactor=Names())
    assert guard.text(f"Ada has {KEY}") == f"[redacted: person] has {GONE}"
    guard.refuse("Ada")
    assert Guard("off", redactor=Names()).text(f"Ada has {KEY}") == f"[redacted: person] has {KEY}"


@pytest.mark.parametrize("finding", [(0, 0), (900, 900), (7, 3)], ids=str)
def test_what_a_redactor_finds_in_no_character_is_nothing(finding: tuple[int, int]) -> None:
    class Finds:
        def find(self, text: str) -> Iterable[tuple[int, int, str]]:
            return [(*finding, "nothing")]

    assert Guard(redactor=Finds()).find("Ada lives in Rome. " * 60) == []


def test_json_data_is_searched_in_all_its_texts_and_kept_if_nothing_is_found() -> None:
    guard = Guard()
    value: dict[str, Any] = {"a": ["Rome", 1, {"b": None}], "password": "x"}
    assert guard.value(value) is value
    assert guard.value({KEY: [("x", KEY)], "api_key": "3f7a9c2b1d4e5f60", "n": 1}) == {
        GONE: [["x", GONE]],
        "api_key": "[redacted: secret_key]",
        "n": 1,
    }
    assert guard.kinds({"api_key": "3f7a9c2b1d4e5f60", "b": KEY}, KEY) == ("secret_key", "aws_access_key")
    assert Guard("off").kinds({"api_key": "3f7a9c2b1d4e5f60"}) == ()


def test_a_row_is_found_again_by_its_identifiers() -> None:
    """A session id is what an application finds a session by: two that are redacted alike would be one."""
    guard = Guard()
    value = json.dumps({"session_id": KEY, "content": KEY, "n": 1})
    assert json.loads(guard.stored(value)) == {"session_id": KEY, "content": GONE, "n": 1}
    assert guard.stored('{"content":"x"}') == '{"content":"x"}'
    assert guard.stored("[1]") == "[1]"


def test_a_record_loses_secrets_in_every_text() -> None:
    guard = Guard()
    assert guard.record(RECORD) is RECORD
    alone = replace(RECORD, tags=(), extra_metadata={})
    assert guard.record(alone) is alone
    assert guard.record(replace(alone, content=f"It is {KEY}")).content == f"It is {GONE}"
    assert guard.record(replace(alone, topic=f"keys {KEY}")).topic == f"keys {GONE}"
    told = replace(
        RECORD,
        content=f"uses {KEY}",
        topic=KEY,
        tags=(KEY, "home", f"ASIA{KEY[4:]}"),
        extra_metadata={"entities": [KEY]},
        source=MemorySource(tool=KEY, thread_id=KEY, message_ids=(KEY,)),
    )
    clean = guard.record(told)
    assert KEY not in repr(clean)
    assert (clean.content, clean.topic, clean.tags) == (f"uses {GONE}", GONE, (GONE, "home"))
    assert clean.source == MemorySource(tool=GONE, thread_id=GONE, message_ids=(GONE,))
    assert guard.record(clean) is clean


def test_a_topic_may_say_that_the_content_is_a_password() -> None:
    """The memory tool stored {"topic": "wifi password", "content": "hunter2x"} as it was."""
    told = replace(RECORD, topic="wifi password", content="hunter2x")
    assert Guard().record(told).content == "[redacted: secret_key]"
    assert Guard().kinds({"topic": "wifi password", "content": "hunter2x"}) == ("secret_key",)


def test_an_error_is_told_without_the_key_that_it_quotes() -> None:
    """Guards logs: a provider's error says which key it refused."""
    key = "AKIA" + "CANARY7CANARY7CA"
    assert told_error(ValueError(f"Incorrect API key\nprovided: {key}")) == (
        "Incorrect API key provided: [redacted: aws_access_key]"
    )


def test_regression_fields_whose_names_are_secrets_keep_their_values() -> None:
    """Two of them had the same name once they were redacted, and the value of one was lost."""
    other = "AKIA" + "I44QH8DHBEXAMPLE"
    assert list(Guard().value({KEY: 1, other: 2, GONE: 3}).values()) == [1, 2, 3]
