"""The writes that undo a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from inference_core.ingestion.consolidation import LAST_JOB, LAST_SEEN, REINFORCED, WOULD_END
from inference_core.memory.fields import moment_field
from inference_core.memory.record import MemoryRecord
from inference_core.services.operations.scope import put_of
from inference_core.stores.backend import Delete, Row, Write


class Undoing:
    """Undoes ``job`` among ``records``: the memories that it changed, and those before and after what it added.

    What it added is removed. What that superseded holds again, or is superseded by what came later.
    """

    def __init__(self, job: Row, records: Mapping[str, MemoryRecord]) -> None:
        self.added = {key: records[key] for key in job.value["added"] if key in records}
        self._job = job
        self._records = records
        self._now = {key: record for key, record in records.items() if key not in self.added}
        for record in self.added.values():
            self._unlink(record)
        for key in job.value["superseded"]:
            self._give_back(key, job.value["reinforced"])
        for key in set(job.value["reinforced"]) & set(self._now):
            self._now[key] = self._less_reinforced(self._now[key])

    @property
    def writes(self) -> list[Write]:
        """The writes; they fail if one of the memories has changed meanwhile."""
        return [
            *(Delete(namespace=one.namespace, key=one.id, expected=one.version) for one in self.added.values()),
            *(put_of(one, expected=one.version) for key, one in self._now.items() if one is not self._records[key]),
        ]

    def _unlink(self, gone: MemoryRecord) -> None:
        last = gone
        while last.superseded_by in self.added:
            last = self.added[last.superseded_by]
        heir = self._now.get(last.superseded_by or "")
        freed = [key for key in gone.supersedes if key in self._now and self._now[key].superseded_by == gone.id]
        for key in freed:
            ended = {} if heir is None else {"superseded_by": heir.id, "valid_to": last.valid_to}
            self._now[key] = replace(self._now[key], **ended) if ended else _restored(self._now[key])
        if heir is not None:
            others = [key for key in heir.supersedes if key != last.id]
            self._now[heir.id] = replace(heir, supersedes=tuple(dict.fromkeys([*others, *freed])))

    def _give_back(self, key: str, reinforced: Sequence[str]) -> None:
        """Reinstates a memory that was superseded by one that was there before the job."""
        old = self._now.get(key)
        if old is None or old.superseded_by not in reinforced or old.superseded_by not in self._now:
            return
        heir = self._now[old.superseded_by]
        self._now[heir.id] = replace(heir, supersedes=tuple(one for one in heir.supersedes if one != key))
        self._now[key] = _restored(old)

    def _less_reinforced(self, record: MemoryRecord) -> MemoryRecord:
        known = record.extra_metadata
        count = known.get(REINFORCED)
        left = count - 1 if isinstance(count, int) else 0
        others = {name: value for name, value in known.items() if name not in (REINFORCED, LAST_SEEN, LAST_JOB)}
        is_last = known.get(LAST_JOB) == self._job.key
        seen: Mapping[str, Any] = self._job.value["before"].get(record.id, {}) if is_last else known
        noted = {name: seen[name] for name in (LAST_SEEN, LAST_JOB) if name in seen}
        return replace(record, extra_metadata={**others, **({REINFORCED: left, **noted} if left > 0 else {})})


def _restored(record: MemoryRecord) -> MemoryRecord:
    metadata = {name: value for name, value in record.extra_metadata.items() if name != WOULD_END}
    end = moment_field(record.extra_metadata, WOULD_END)
    return replace(record, superseded_by=None, valid_to=end, extra_metadata=metadata)
