"""Backups are restored from every store into every other, and nobody whom the ledger names comes back with them."""

from __future__ import annotations

import ast
import shutil
import stat
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from backup_support import fill, live, made
from databases import database

import inference_core
from inference_core import AgentMemoryStoreService, open_store
from inference_core.errors import ConfigurationError, InvalidInput, StoreError, StoreUnavailable
from inference_core.lifecycle import erasing, repairs
from inference_core.lifecycle.erasing import erase
from inference_core.lifecycle.ledger import Ledger
from inference_core.memory.namespaces import AUDIT, ERASED, FORGOTTEN, USAGE, VERSIONS
from inference_core.services.operations.tuning import TUNED_META
from inference_core.stores.backend import EMBEDDING_META, Backend, Row
from inference_core.stores.backends.redis.backend import RedisBackend
from inference_core.stores.encryption.keyring import open_keys
from inference_core.stores.factory import open_backend
from inference_core.stores.rules.erasure_epoch import Fences, fences_of
from inference_core.transfer.backup import back_up, drill, restore, verify

KINDS = ("sqlite", "postgres", "redis", "file", "mongodb")
PLACES = {"semantic", FORGOTTEN, USAGE, VERSIONS, AUDIT, "outbox"}
CANARY = "zqcanary7 of Ada"


class Seen:
    """The progress that was reported; it never goes back, and ends when all is done."""

    done = total = 0

    def __call__(self, done: int, total: int) -> None:
        assert self.done <= done <= total
        self.done, self.total = done, total

    def is_complete(self) -> bool:
        return self.done == self.total > 0


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A backup of ada, whose memories hold the canary, and of bob."""
    with closing(open_backend(f"sqlite:///{tmp_path / 'm.db'}")) as store:
        fill(store)
        store.apply([[made(number, "ada", CANARY)] for number in range(9)])
        back_up(store, tmp_path / "backup")
    return tmp_path / "backup"


@pytest.fixture
def ledger(saved: Path, tmp_path: Path) -> Ledger:
    """The ledger of the store, from which ada was erased after the backup."""
    ledger = Ledger(tmp_path / "ledger.jsonl")
    with closing(open_backend(f"sqlite:///{tmp_path / 'm.db'}")) as store:
        erase([store], "ada", ledger)
    return ledger


@pytest.mark.parametrize("kind", [*KINDS, "memory"])
def test_each_store_is_restored_into_each_other(kind: str, tmp_path: Path, full: bool) -> None:
    """Memories, vectors, earlier versions, archive, events and counts: by a digest of each user, from another read."""
    with database(kind, tmp_path) as url:
        place: Any = {} if kind == "memory" else url
        live(place, "eve")
        with closing(open_backend(place)) as store:
            fill(store)
            assert {row.namespace[1] for row in rows_of(store, "eve")} >= PLACES
            seen = Seen()
            before = back_up(store, tmp_path / "backup", seen)
            assert seen.is_complete()
            with pytest.raises(InvalidInput, match="already exists"):
                back_up(store, tmp_path / "backup")
    files = [path for path in (tmp_path / "backup").rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    seen = Seen()
    assert verify(tmp_path / "backup", seen) == before
    assert seen.is_complete()
    for target in KINDS if full or kind == "sqlite" else ("sqlite",):
        folder = tmp_path / f"into-{target}"
        folder.mkdir()
        with database(target, folder, is_new=True) as url:
            seen = Seen()
            assert restore(tmp_path / "backup", url, progress=seen) == (before, [])
            assert seen.is_complete()
            with closing(open_backend(url)) as store:
                assert back_up(store, folder / "again").contents == before.contents
                assert store.get_meta(EMBEDDING_META) == "m"
                assert store.get_meta(TUNED_META + "batch_messages") == "7"
                assert [row.version for row in store.get([(("ada", "semantic"), "k3")]) if row] == [2]
            with open_store(url, embeddings=None) as store:
                trail = AgentMemoryStoreService(store).sync.verify_audit("eve")
                assert (trail.problems, trail.sealed) == ((), trail.events)
            with pytest.raises(InvalidInput, match="only into a new store"):
                restore(tmp_path / "backup", url)
    assert [path.name for path in tmp_path.rglob("*") if ".part" in path.name] == []


@pytest.mark.parametrize("kind", KINDS)
def test_who_was_erased_since_does_not_come_back(kind: str, saved: Path, ledger: Ledger, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    with database(kind, tmp_path / "new", is_new=True) as url:
        _, receipts = restore(saved, url, ledger)
        assert [(one.found, one.left) for one in receipts] == [(11, 0)]
        with open_store(url, embeddings=None) as store:
            service = AgentMemoryStoreService(store).sync
            assert service.list_memories("ada")[0] == service.recall_memories("ada", CANARY) == []
            check_erased(store.engine.backend)
        files = [path for path in (tmp_path / "new").rglob("*") if path.is_file()]
        assert [path for path in files if CANARY.encode() in path.read_bytes()] == []


@pytest.mark.parametrize(
    ("where", "name"), [(RedisBackend, "apply"), (RedisBackend, "erase"), (Ledger, "append"), (Fences, "take_down")]
)
def test_a_restore_that_was_interrupted_is_continued(
    where: type, name: str, saved: Path, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once users were erased again, they came back, and the store was said to be not empty, or kept them out."""
    with database("redis", tmp_path) as url:
        real, left = getattr(where, name), 1 if name == "apply" else 0

        def failing(*arguments: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise StoreUnavailable("killed")
            return real(*arguments)

        with monkeypatch.context() as patched:
            patched.setattr(where, name, failing)
            patched.setattr("inference_core.transfer.backup._PORTION", 4)
            with pytest.raises(StoreUnavailable):
                restore(saved, url, ledger)
        assert restore(saved, url, Ledger(ledger.path))[0].rows == 21
        with closing(open_backend(url)) as store:
            check_erased(store)
        with pytest.raises(InvalidInput, match="not empty"):
            restore(saved, url)


def test_a_backup_from_the_midst_of_an_erasure_is_erased_again(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its fence is later than the beginning of the erasure: it was taken for one that knows of it."""
    ledger, real = Ledger(tmp_path / "ledger.jsonl"), erasing._remove

    def removed(store: Any, *arguments: Any) -> None:
        back_up(store, tmp_path / "midst")
        real(store, *arguments)

    with closing(open_backend(f"sqlite:///{tmp_path / 'm.db'}")) as store:
        monkeypatch.setattr(erasing, "_remove", removed)
        erase([store], "ada", ledger)
        monkeypatch.undo()
    _, receipts = restore(tmp_path / "midst", f"sqlite:///{tmp_path / 'new'}", ledger)
    assert [(one.found, one.left) for one in receipts] == [(11, 0)]
    with closing(open_backend(f"sqlite:///{tmp_path / 'new'}")) as store:
        check_erased(store)


def test_a_hold_in_a_backup_keeps_its_user_and_nobody_else(tmp_path: Path) -> None:
    """One such user kept the whole backup from being restored."""
    url, ledger = f"sqlite:///{tmp_path / 'm.db'}", Ledger(tmp_path / "ledger.jsonl")
    with open_store(url, embeddings=None) as store:
        service = AgentMemoryStoreService(store).sync
        for user in ("ada", "bob", "eve"):
            service.save_memory(user, "likes tea")
        hold = service.hold("ada", "a case")
        back_up(store.engine.backend, tmp_path / "backup")
        service.release_hold("ada", hold.id)
        for user in ("ada", "bob"):
            erase([store.engine.backend], user, ledger)
    new = f"sqlite:///{tmp_path / 'new.db'}"
    with pytest.raises(StoreError, match=f"legal holds in it protect users in the ledger: {hold.id}"):
        restore(tmp_path / "backup", new, ledger)
    with open_store(new, embeddings=None) as store:
        service = AgentMemoryStoreService(store).sync
        assert [len(service.list_memories(user)[0]) for user in ("ada", "bob", "eve")] == [1, 0, 1]
        service.release_hold("ada", hold.id)
        assert [one.left for one in repairs.replay([store.engine.backend], ledger)] == [0]
        assert service.list_memories("ada")[0] == []


def test_a_destroyed_key_reaches_a_backup_of_another_kind(tmp_path: Path) -> None:
    """An open store's own backend gave a backup in plain text: its holds hid that it is encrypted."""
    keys: Any = {"keys": f"sqlite:///{tmp_path / 'keys.db'}", "encryption_key": "a" * 64}
    with database("redis", tmp_path) as url, open_store(url, embeddings=None, **keys) as store:
        for user in ("ada", "bob"):
            store.memory(user).add(CANARY, "preferences")
        back_up(store.engine.backend, tmp_path / "backup")
    assert CANARY.encode() not in (tmp_path / "backup" / "store").read_bytes()
    with closing(open_keys(keys["keys"], keys["encryption_key"])) as ring:
        ring.destroy("ada")
    drill(tmp_path / "backup", **keys)
    restore(tmp_path / "backup", f"sqlite:///{tmp_path / 'new.db'}", **keys)
    with open_store(f"sqlite:///{tmp_path / 'new.db'}", embeddings=None, **keys) as store:
        service = AgentMemoryStoreService(store).sync
        assert [len(service.list_memories(user)[0]) for user in ("ada", "bob")] == [0, 1]


def test_regression_a_replay_leaves_the_new_key_of_who_came_back(tmp_path: Path) -> None:
    """It destroyed all keys of the user, also the one that seals what another store has of the user since."""
    keys: Any = {"keys": f"sqlite:///{tmp_path / 'keys.db'}", "encryption_key": "a" * 64}
    url, ledger = f"sqlite:///{tmp_path / 'm.db'}", Ledger(tmp_path / "ledger.jsonl")
    with open_store(url, embeddings=None, **keys) as store:
        store.memory("ada").add(CANARY, "preferences")
        back_up(store.engine.backend, tmp_path / "backup")
        erase([store.engine.backend], "ada", ledger)
        store.memory("ada").add("back again", "preferences")
    _, receipts = restore(tmp_path / "backup", f"sqlite:///{tmp_path / 'new.db'}", ledger, **keys)
    assert [one.left for one in receipts] == [0]
    with open_store(url, embeddings=None, **keys) as store:
        assert [one.content for one in store.memory("ada").all()] == ["back again"]


@pytest.mark.parametrize("kind", KINDS)
def test_regression_a_backup_that_is_not_encrypted_is_restored_so_where_keys_are_set(
    kind: str, saved: Path, tmp_path: Path
) -> None:
    """Its rows lay in clear in a store that was marked as encrypted, and nobody could read them."""
    keys: Any = {"keys": f"sqlite:///{tmp_path / 'keys.db'}", "encryption_key": "a" * 64}
    (tmp_path / "new").mkdir()
    with database(kind, tmp_path / "new", is_new=True) as url:
        assert restore(saved, url, **keys)[0].rows == 21
        with open_store(url, embeddings=None) as store:
            assert len(AgentMemoryStoreService(store).sync.list_memories("ada")[0]) == 11
            back_up(store.engine.backend, tmp_path / "again")
        assert drill(tmp_path / "again", **keys).rows >= 21
        with pytest.raises(ConfigurationError, match="was written without keys"):
            open_store(url, embeddings=None, **keys)


@pytest.mark.parametrize("name", ["a%20b", "100%", "what?", "a b", "\udcff"])
def test_regression_a_folder_may_have_any_name(
    name: str, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name was decoded twice: an empty store in another folder was compared with the backup."""
    folder = tmp_path / name
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    for scheme in ("sqlite", "file"):
        place = f"{folder}/m-{scheme}".replace("%", "%25").replace("?", "%3F")
        assert restore(saved, f"{scheme}:///{place}")[0].rows == 21
        assert (folder / f"m-{scheme}").exists()
    assert drill(saved).rows == 21
    assert [path.name for path in tmp_path.iterdir() if path.is_dir() and path != saved] == [name]


def test_a_drill_leaves_nothing(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before, seen = sorted(tmp_path.iterdir()), Seen()
    assert drill(saved, seen).rows == 21
    assert seen.is_complete()
    assert sorted(tmp_path.iterdir()) == before
    shutil.copy(saved / "manifest.json", saved / "store")
    with pytest.raises(InvalidInput, match="store is damaged"):
        drill(saved)


def test_a_drill_of_many_rows_is_quick(tmp_path: Path, full: bool) -> None:
    count = 100_000 if full else 600
    with closing(open_backend(f"sqlite:///{tmp_path / 'm.db'}", durable=False)) as store:
        for start in range(0, count, 1_000):
            numbers = range(start, min(count, start + 1_000))
            store.apply([[made(number, "ada") for number in numbers]])
        back_up(store, tmp_path / "backup")
    began = time.monotonic()
    assert drill(tmp_path / "backup").rows == count
    assert time.monotonic() - began < 60


def check_erased(store: Backend) -> None:
    """Nothing of ada is there, and an erasure of her has ended, so that she may come back."""
    assert {row.namespace[0] for row in rows_of(store)} == {"~bob~40example", "~outbox", ERASED}
    assert fences_of(store).since("ada") > 0


def rows_of(store: Backend, root: str | None = None) -> list[Row]:
    return [one for one in store.inspect(root) if isinstance(one, Row)]


def test_every_setting_of_a_store_is_in_a_backup() -> None:
    """Without the key of the audit trail, each event in a store of another kind looked changed."""
    package = Path(inference_core.__file__).parent
    calls = [
        node
        for path in package.rglob("*.py")
        if "backends" not in path.parts
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "set_meta"
    ]
    names = {ast.unparse(call.args[0]) for call in calls} - {"name", "_RESTORING"}
    assert names == {
        "AUDIT_META",
        "KEY_META",
        "COPIES_META",
        "CONTENT_KEY_META",
        "EMBEDDING_META",
        "DIMENSIONS_META",
    } | {"TUNED_META + name"}, "add a new one to _SETTINGS in transfer/backup.py, and here"


def test_regression_an_erasure_after_one_whose_plan_stayed_has_its_own_receipt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took over the id of the one before, so it got none, and a backup between the two brought the user back."""
    url, ledger = f"sqlite:///{tmp_path / 'm.db'}", tmp_path / "ledger.jsonl"
    unlink = Path.unlink

    def killed(path: Path, *, missing_ok: bool = False) -> None:
        if path.name.startswith("ledger.jsonl.") and not path.name.endswith(".part"):  # the plan
            raise OSError("killed")
        unlink(path, missing_ok=missing_ok)

    with open_store(url, embeddings=None) as store:
        store.memory("ada").add(CANARY, "preferences")
        with monkeypatch.context() as patched:
            patched.setattr(Path, "unlink", killed)
            with pytest.raises(OSError, match="killed"):
                erase([store.engine.backend], "ada", Ledger(ledger))
        assert Ledger(ledger).plan("ada").exists()
        store.memory("ada").add("back again", "preferences")
        back_up(store.engine.backend, tmp_path / "backup")
        erase([store.engine.backend], "ada", Ledger(ledger))
        assert len(Ledger(ledger).entries) == 2
    _, receipts = restore(tmp_path / "backup", f"sqlite:///{tmp_path / 'new.db'}", Ledger(ledger))
    assert [one.found for one in receipts] != []
    with open_store(f"sqlite:///{tmp_path / 'new.db'}", embeddings=None) as store:
        assert store.memory("ada").all() == []
