"""The report, as text and as JSON."""

from __future__ import annotations

import json
from dataclasses import replace

from migration_support import item

from inference_core.memory.namespaces import MemoryNamespaceBuilder
from inference_core.transfer.legacy import records_of
from inference_core.transfer.migration_report import SHOWN, MigrationReport


def filled() -> MigrationReport:
    report = MigrationReport("sqlite:///m.db", users=2, found=20, already_there=3)
    report.by_layout.update({"coala": 15, "flat": 5})
    report.count_other(("team", "docs"), 7)
    report.by_category.update({"semantic": 2, "episodic": 1})
    for at in range(13):
        report.count_skipped("ada", f"id{at}", "no content", "no content")
    record = records_of(item({"content": "x"}, user_id="x@host"), MemoryNamespaceBuilder(), 100)[0]
    report.count_failed(record, RuntimeError("disk full"))
    return report


def test_text_says_what_was_done_and_what_was_not():
    text = filled().to_text()
    assert "sqlite:///m.db: 20 memories of 2 users (15 coala, 5 flat); the originals are not changed" in text
    assert "7 other items are in no known layout (--layout names one): 'team.docs'." in text
    assert "Migrated 3: 2 semantic, 1 episodic, 0 procedural." in text
    assert "Skipped 3 that were already there" in text
    assert "Skipped 13: no content." in text
    assert "FAILED: 1" in text
    assert "Vectors are added when" in text
    assert text.count("'ada'") == SHOWN
    assert "'x@host' 'm1': 'disk full'" in text


def test_a_dry_run_promises_no_more_than_it_does():
    text = replace(filled(), is_dry_run=True).to_text()
    assert "Would migrate 3" in text
    assert "Vectors" not in text


def test_an_empty_run_says_so():
    assert MigrationReport("memory://").to_text() == "Nothing to migrate in memory://."
    assert MigrationReport("sqlite:///m.db", is_missing=True).to_text().endswith("There is no such file yet.")


def test_regression_the_database_that_was_read_is_named():
    """It said that the target's originals are not changed."""
    text = replace(filled(), read_from="sqlite:///old.db").to_text()
    assert text.startswith("sqlite:///old.db: 20 memories of 2 users")
    assert "Migrated 3 into sqlite:///m.db: " in text
    assert MigrationReport("memory://", read_from="memory://a").to_text() == "Nothing to migrate in memory://a."


def test_hostile_ids_cannot_write_to_the_terminal():
    report = MigrationReport("memory://", found=1)
    report.count_skipped("\x1b[2J\n" + "u" * 1_000, "\u202eid", "no content", "no content")
    line = report.to_text().splitlines()[-1]
    assert line.isascii()
    assert line.isprintable()
    assert len(line) < 500


def test_json_holds_all_counts():
    found = json.loads(json.dumps(filled().to_json()))
    assert found["written"] == 3
    assert (found["by_layout"], found["others"]) == ({"coala": 15, "flat": 5}, 7)
    assert found["by_category"] == {"semantic": 2, "episodic": 1, "procedural": 0}
    assert (found["skipped"], found["skipped_by_reason"], found["failed"]) == (13, {"no content": 13}, 1)
    assert found["left_out"][0] == {"user_id": "ada", "id": "id0", "reason": "no content"}


def test_a_refused_memory_is_named_by_its_users_own_id():
    report = MigrationReport("memory://")
    record = records_of(item({"content": "x"}, user_id="x@host"), MemoryNamespaceBuilder(), 100)[0]
    report.count_failed(record, RuntimeError("disk full"))
    assert report.failures[0].user_id == "x@host"
