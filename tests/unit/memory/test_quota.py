"""What limits mean, how memories are counted, and how many writes a minute hold."""

from __future__ import annotations

import logging

import pytest

from inference_core import MemorySettings, Quota
from inference_core.errors import ConfigurationError, QuotaExceeded
from inference_core.memory.quota import Limit, Quotas, counted, counts_of, counts_to_json
from inference_core.settings import read_settings

BY_WORK = '{"content": "a", "agent_name": "work"}'


def test_a_limit_is_a_number_or_a_text_that_names_agents_too() -> None:
    assert Limit.of(None) == Limit.of("") == Limit()
    assert Limit.of(5000) == Limit.of(" 5000 ") == Limit(5000)
    assert Limit.of("5000, agent=1000") == Limit(5000, 1000)
    assert Limit.of("agent=1000") == Limit(None, 1000)
    for wrong in ("0", "many", "-1", "user=5", "5,agent=", 0, 1.5):
        with pytest.raises(ConfigurationError, match="is no limit; write 5000, or 5000,agent=1000"):
            Quota(max_memories=wrong)  # pyright: ignore[reportArgumentType]


def test_settings_name_the_limits() -> None:
    settings = read_settings(MemorySettings, max_memories=9, max_bytes="8,agent=7", writes_per_minute="6")
    assert settings.quota == Quota("9", "8,agent=7", "6")
    assert settings.quota.has_sizes
    assert not read_settings(MemorySettings).quota.has_sizes
    with pytest.raises(ConfigurationError, match=r"AGENT_MEMORY_MAX_BYTES: .*'1MB' is no limit"):
        read_settings(MemorySettings, max_bytes="1MB")


def test_memories_count_for_their_user_and_the_agent_that_saved_them() -> None:
    counts = counted({}, [(None, BY_WORK), (None, '{"content": "ä"}'), (None, '{"agent_name": broken')])
    assert counts == {"": (3, len(BY_WORK) + 17 + 21), "work": (1, len(BY_WORK))}
    assert counts_of({"counts": {"": [3, 4], "work": [0, 0]}})[""] == (3, 4)
    gone = counted(counts, [(BY_WORK, None)])
    assert gone["work"] == (0, 0)
    assert '"work"' not in counts_to_json(gone)
    assert counted({}, [(BY_WORK, None)]) == {"": (0, 0), "work": (0, 0)}


def test_only_what_makes_more_of_something_is_refused() -> None:
    quota = Quota(max_memories=2, max_bytes="100,agent=10")
    quota.check({"": (2, 90)}, {"": (2, 100)})
    quota.check({"": (5, 900)}, {"": (4, 800)})
    quota.check({"": (5, 900)}, {"": (5, 900)})
    with pytest.raises(QuotaExceeded, match=r"^Memory is full: 2 of 2 memories; update or forget .*; do not retry$"):
        quota.check({"": (2, 90)}, {"": (3, 91)})
    with pytest.raises(QuotaExceeded, match="0 of 10 bytes of this agent") as caught:
        quota.check({}, {"": (1, 11), "work": (1, 11)})
    error = caught.value
    assert (error.kind, error.used, error.limit, error.agent) == ("bytes", 0, 10, "work")


def test_the_writes_of_a_minute_fill_up_evenly_for_each_user_and_agent() -> None:
    quotas = Quotas(Quota(writes_per_minute="6,agent=3"))
    for agent in ("work", "work", "work", "home"):
        quotas.spend("ada", agent, 0.0)
    with pytest.raises(QuotaExceeded, match="the limit is 3 writes a minute of this agent; retry in a minute"):
        quotas.spend("ada", "work", 0.0)
    quotas.spend("ada", None, 0.0)
    quotas.spend("ada", None, -5.0)  # a clock that was set back
    with pytest.raises(QuotaExceeded, match="the limit is 6 writes a minute; retry in a minute"):
        quotas.spend("ada", None, 0.0)
    quotas.spend("bob", "work", 0.0)
    quotas.spend("ada", "home", 10.0)
    with pytest.raises(QuotaExceeded):
        quotas.spend("ada", "home", 10.1)


def test_what_is_known_of_many_users_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference_core.memory.quota._MOST_KNOWN", 3)
    quotas = Quotas(Quota(max_memories=1, writes_per_minute=1))
    for number in range(9):
        quotas.spend(str(number), None, 100.0 * number)
        quotas.note(str(number), {"": (1, 1)})
    assert quotas.warning("8", None) == "1 of 1 memories"
    assert quotas.warning("1", None) is None


def test_from_85_percent_on_it_is_nearly_full_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "inference_core.memory.quota")
    quotas = Quotas(Quota(max_memories="100,agent=10"))
    quotas.note("ada", {"": (84, 1), "work": (9, 1)})
    assert quotas.warning("ada", "home") is None
    assert quotas.warning("ada", "work") == "9 of 10 memories of this agent"
    quotas.note("ada", {"": (85, 1), "work": (9, 1)})
    quotas.note("ada", {"": (86, 1), "work": (9, 1)})
    assert quotas.warning("ada", "home") == "86 of 100 memories"
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == [
        "9 of 10 memories of this agent",
        "85 of 100 memories",
    ]
