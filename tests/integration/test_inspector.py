"""The inspector's pages over HTTP: what they show, that looking changes nothing, and who may see and change what."""

from __future__ import annotations

import asyncio
import hashlib
import html
import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlencode

import httpx
import pytest
from inspector_support import ADA, ASKED, HOSTILE, chain, crowd, fail_messages, fill, heads
from server_support import BASE, Served, served
from support import HashingEmbeddings

from inference_core import AgentMemoryStoreService, MemorySource, Origin, open_store
from inference_core.effects import run
from inference_core.errors import ConfirmationNeeded
from inference_core.memory.namespaces import encode_label
from inference_core.memory.record import WEAK_RELEVANCE, MemoryRecord
from inference_core.memory.types import MemoryCategory, MemoryType
from inference_core.server.api.routes import needed
from inference_core.server.identity.auth import CACHED_S, Permission, Sessions, create_key, revoke_key
from inference_core.server.inspector.forms import SCREENS
from inference_core.server.inspector.screens import bars, graph, most_of
from inference_core.services.operations.admission import propose
from inference_core.services.operations.scope import find
from inference_core.testing import FrozenClock

ALL = tuple(Permission)
ASSETS = {
    "htmx.min.js": "d6fdc75f204e6bdefa99b69bf1e6d4ac69b8a364f77929f45c13476b4000f717",
    "uplot.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uplot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}
"""Unchanged files of the npm packages htmx.org 2.0.11 and uplot 1.6.32."""
HOME = f"/ui/u/{encode_label(ADA)}"


Filled = tuple[Path, datetime, dict[str, Any]]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    """A database with what there is to see, when its last change was, and the ids."""
    path, clock = tmp_path_factory.mktemp("filled") / "memory.db", FrozenClock()
    with open_store(f"sqlite:///{path}", embeddings=None, clock=clock) as store:
        service = AgentMemoryStoreService(store, clock=clock)
        fail_messages(service, clock, "bad one", "bad two")
        ids = fill(service, ADA, clock, 58)
    return path, clock.now(), ids


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path, clock: FrozenClock) -> Iterator[Served]:
    if "there" in request.fixturenames:
        path, now, _ = request.getfixturevalue("filled")
        shutil.copy(path, tmp_path / "memory.db")
        clock.advance(now - clock.now())
    with open_store(f"sqlite:///{tmp_path}/memory.db", embeddings=None, clock=clock) as store:
        yield served(AgentMemoryStoreService(store, clock=clock), ledger=tmp_path / "erasures.jsonl")


@pytest.fixture
def there(server: Served, filled: Filled) -> dict[str, Any]:
    return dict(filled[2])


def addresses(there: dict[str, Any]) -> list[str]:
    """Of every screen, with something on it."""
    return [
        f"{HOME}/timeline",
        f"{HOME}/timeline?type=facts&source=agent",
        f"{HOME}/search?q=three+suppliers+of+bearings",
        f"{HOME}/search",
        f"{HOME}/memory?id={there['ids'][0]}",
        f"{HOME}/memory?id={there['gone']}",
        f"{HOME}/profile",
        f"{HOME}/receipts",
        f"{HOME}/receipts?thread=thread-1",
        f"{HOME}/receipt?id={there['receipt']}",
        f"{HOME}/review",
        f"{HOME}/forgotten",
        f"{HOME}/usage",
        f"{HOME}/audit",
        f"{HOME}/audit?memory={there['ids'][0]}",
        f"{HOME}/erase",
        "/ui/outbox",
        "/ui/users",
    ]


def as_json(address: str) -> str:
    path, _, query = address.partition("?")
    return f"{path}.json?{query}"


def texts_in(data: Any) -> Iterator[str]:
    """The texts of memories and messages in a screen's data."""
    if isinstance(data, dict):
        for name, one in data.items():
            if name in ("content", "text") and isinstance(one, str):
                yield one
            else:
                yield from texts_in(one)
    elif isinstance(data, list):
        for one in data:
            yield from texts_in(one)


async def form_token(client: httpx.AsyncClient, address: str) -> str:
    found = re.search(r'name="token" value="([0-9a-f]+)"', (await client.get(address)).text)
    assert found, address
    return found[1]


async def send(client: httpx.AsyncClient, address: str, **fields: str) -> httpx.Response:
    """Sends a form of the screen at ``address``."""
    return await client.post(address, data={"token": await form_token(client, address), **fields})


async def test_each_screen_shows_its_data_and_changes_nothing(server: Served, there: dict[str, Any]):
    """A recall of the inspector was counted; opening a page changed what the page showed."""
    async with server.client(ADA, ALL) as client:
        before = heads(server.service)
        for address in addresses(there):
            page, data = await client.get(address), await client.get(as_json(address))
            assert (page.status_code, data.status_code) == (200, 200), address
            shown = html.unescape(page.text)
            assert [text for text in texts_in(data.json()) if text not in shown] == [], address
            policy = page.headers["content-security-policy"]
            assert "script-src 'self'" in policy
            assert "unsafe" not in policy
            assert "default-src 'none'" in policy
            assert not re.search(r"<script(?![^>]* src=)|<style| style=| on[a-z]+=", page.text), address
        assert heads(server.service) == before


async def test_the_screens_tell_what_people_ask(server: Served, there: dict[str, Any]):
    async with server.client(ADA, ALL) as client:

        async def data(address: str) -> Any:
            return (await client.get(as_json(address))).json()

        first = await data(f"{HOME}/timeline")
        assert sum(first["types"].values()) == 80
        assert len([one for day in first["days"] for one in day["memories"]]) == 40
        second = await data(f"{HOME}/timeline?{urlencode({'after': first['next_cursor']})}")
        assert second["next_cursor"] is None
        assert len([one for day in second["days"] for one in day["memories"]]) == 40
        agents = await data(f"{HOME}/timeline?type=facts&source=agent")
        found = [one for day in agents["days"] for one in day["memories"]]
        assert {(one["type"], one["source"]["origin"]) for one in found} == {("facts", "agent")}
        hits = (await data(f"{HOME}/search?q=three+suppliers+of+bearings"))["hits"]
        assert any("bearings" in one["memory"]["content"] for one in hits[:3])
        assert sum(hits[0]["shares"].values()) == pytest.approx(hits[0]["score"], abs=0.01)
        memory = await data(f"{HOME}/memory?id={there['ids'][0]}")
        kinds = [kind for kind, _ in memory["versions"][0]["changes"]]
        assert {"added", "removed", "same"} == set(kinds)
        assert len(memory["versions"]) == 2
        assert memory["edges"]
        assert 1 < len(memory["nodes"]) <= 50
        told = await data(f"{HOME}/memory?id={there['ids'][9]}")
        assert [one["id"] for one in told["told"]] == ["receipt-1", "receipt-2", "receipt-3"]
        receipt = await data(f"{HOME}/receipt?id={there['receipt']}")
        assert receipt["is_same"]
        assert "bearings" in receipt["block"]
        assert [one["reason"] for one in receipt["dropped"]] == ["budget"]
        assert {one["memory"]["id"] for one in (await data(f"{HOME}/review"))["pending"]} == set(there["waits"])
        assert [one["memory"]["id"] for one in (await data(f"{HOME}/forgotten"))["forgotten"]] == [there["gone"]]
        assert (await data(f"{HOME}/memory?id={there['gone']}"))["removed"]["reason"] == "deleted"
        events = (await data(f"{HOME}/audit?memory={there['ids'][0]}"))["events"]
        assert [one["operation"] for one in events] == ["update", "save"]
        assert (await data("/ui/outbox"))["dead"] == 2
        assert (await data("/ui/users"))["users"] == [{"user_id": ADA, "memories": 80}]
        for missing in ("memory?id=none", "receipt?id=none", "memory?id=a%20b"):
            assert (await client.get(f"{HOME}/{missing}")).status_code in (404, 422)
        assert (await client.get(f"{HOME}/timeline?after=nonsense")).status_code == 422
        assert (await client.get("/ui/u/~zz/timeline")).status_code == 404


async def test_regression_what_is_not_there_is_not_the_stores_fault(server: Served, there: dict[str, Any]):
    """A page that is nobody's said that the store may not answer at the moment."""
    async with server.client(ADA, ALL) as client:
        for address, said in (
            ("/ui/u/~zz/timeline", "There is no such user"),
            ("/ui/static/none.css", "There is nothing at this address."),
            (f"{HOME}/receipt?id=none", "There is no such receipt"),
        ):
            page = await client.get(address)
            assert page.status_code == 404, address
            assert said in page.text, address
            assert "the store" not in page.text.lower(), address
        page = await client.get("/ui/u/nobody/timeline")
        assert page.status_code == 200
        assert "No memories here yet." in page.text
        page = await client.post(f"{HOME}/review", content=b"\xff")
        assert (page.status_code, "This form cannot be read." in page.text) == (400, True)


HTML = {"Accept": "text/html,application/xhtml+xml;q=0.9"}


async def test_the_first_address_leads_to_the_pages(server: Served):
    async with server.client() as anyone:
        answer = await anyone.get("/", headers=HTML)
        assert (answer.status_code, answer.headers["location"]) == (303, "/ui")
        problem = await anyone.get("/")
        assert (problem.status_code, problem.headers["content-type"]) == (404, "application/problem+json")
        assert "/v1" in problem.json()["detail"]
        assert (await anyone.get("/ui/nope", headers=HTML)).headers["location"] == "/ui/login"


@pytest.mark.parametrize("address", ["/ui/nope", "/ui/u/ada/nope", "/ui/u/ada", "/ui/u/%00/timeline", "/ui/timeline/x"])
async def test_an_address_of_no_page_is_told_on_a_page(server: Served, address: str):
    async with server.client("ada") as client:
        answer = await client.get(address, headers=HTML)
        assert (answer.status_code, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
        assert "There is no such " in answer.text
        data = await client.get(f"{address}.json")
        assert (data.status_code, data.headers["content-type"]) == (404, "application/problem+json")


@pytest.mark.parametrize("user", ["bob@example.com", "Ädä Ñ", "a~b", "x" * 70])
async def test_an_address_may_name_the_user_by_the_plain_id(server: Served, user: str):
    label = encode_label(user)
    async with server.client("root", frozenset(Permission)) as client:
        plain = quote(user, safe="")
        answer = await client.get(f"/ui/u/{plain}/search?q=a%26b")
        assert (answer.status_code, answer.headers["location"]) == (303, f"/ui/u/{label}/search?q=a%26b")
        assert (await client.get(answer.headers["location"])).status_code == 200
        as_data = await client.get(f"/ui/u/{plain}/timeline.json")
        assert as_data.headers["location"] == f"/ui/u/{label}/timeline.json"
        assert (await client.post(f"/ui/u/{plain}/review")).status_code == 404


async def test_replaced_memories_are_a_chain(server: Served, clock: FrozenClock):
    *_, last = chain(server.service, ADA, clock, "Lives in Lisbon", "Lives in Porto", "Lives in Faro")
    async with server.client(ADA) as client:
        data = (await client.get(as_json(f"{HOME}/memory?id={last}"))).json()
    assert data["versions"][0]["changes"] == [["same", "Lives in"], ["removed", "Porto"], ["added", "Faro"]]
    assert len(data["versions"]) == 3
    assert [edge["kind"] for edge in data["edges"]] == ["replaces", "replaces"]


async def test_hostile_memories_stay_text(server: Served, clock: FrozenClock):
    """A stored text that is markup, a template or steers the reader's eye."""
    memory, name = server.service.sync, f"eve'\"><b>{HOSTILE[0]}"
    home = f"/ui/u/{encode_label(name)}"
    ids = [memory.save_memory(name, text, "facts", topic=text[:60], tags=[text[:30]]) for text in HOSTILE]
    memory.update_memory(name, ids[0], f"{HOSTILE[0]} again", extra_metadata={"<i>": HOSTILE[2]})
    memory.delete_memory(name, ids[3])
    memory.save_memory(name, "\n".join(HOSTILE[:4]), "preferences")
    async with server.client(name, ALL) as client:
        found = f"search?{urlencode({'q': HOSTILE[0]})}"
        paths = ("timeline", found, "forgotten", "usage", "audit", "erase", "profile")
        for path in (*paths, *(f"memory?id={one}" for one in ids)):
            page = (await client.get(f"{home}/{path}")).text
            for bad in ("<img src=x", "<b hx-get", "<script>", "<svg/onload", "<i>", "> 49 "):
                assert bad not in page, (path, bad)
            read = re.sub("<textarea.*?</textarea>", "", page, flags=re.DOTALL)  # which sends back what it shows
            assert not {"\u202e", "\u200b"}.intersection(read), path
        assert "\\u202egnp.exe" in (await client.get(f"{home}/timeline")).text


async def test_regression_the_audit_shows_an_expired_memory_as_removed(clock: FrozenClock):
    """It was shown as new."""
    with open_store("memory://", embeddings=None, clock=clock, ttl={"default_ttl": 1}) as store:
        server = served(AgentMemoryStoreService(store, clock=clock))
        server.service.sync.save_memory(ADA, "Likes tea", "facts", memory_id="tea")
        clock.advance(timedelta(hours=1))
        run(store.engine.remove_expired())
        async with server.client(ADA, ALL) as client:
            page = (await client.get(f"{HOME}/audit")).text
        assert re.findall(r'id=tea".*?<span class="quiet">(\w+)</span>', page) == ["removed", "new"]


@pytest.mark.parametrize("kind", [pytest.param("long", marks=pytest.mark.untraced), "many"])
async def test_pages_stay_small_whatever_is_stored(server: Served, clock: FrozenClock, kind: str):
    memory = server.service.sync
    if kind == "long":
        texts = [("\"<&'" * 2_040 + f" {number}") for number in range(60)]
        ids = [memory.save_memory(ADA, text, "facts", tags=["\"'" * 30] * 1, extra_metadata={"x": '"<' * 3_000})
               for text in texts]  # fmt: skip
        for number in range(14):
            memory.update_memory(ADA, ids[0], f"{number} " + "\"< a&'" * 1_100)
        for one in ids[50:]:
            memory.delete_memory(ADA, one)
        for one in texts[:9]:
            memory.save_memory(ADA, one, "preferences")
    else:
        crowd(server.service, ADA, clock, 1_000)
        ids = ["m7"]
    async with server.client(ADA, ALL) as client:
        paths = ("timeline", "timeline?source=web", f"memory?id={ids[0]}", "search?q=a+lisbon", "forgotten", "usage",
                 "audit", "review", "receipts", "profile")  # fmt: skip
        for path in paths:
            for address in (f"{HOME}/{path}", as_json(f"{HOME}/{path}")):
                answer = await client.get(address)
                assert answer.status_code == 200, address
                assert len(answer.content) < 200_000, (address, len(answer.content))


async def test_a_rare_source_costs_no_more_than_a_page(server: Served, clock: FrozenClock, monkeypatch: Any):
    monkeypatch.setattr("inference_core.services.operations.list.MOST_BROWSED", 100)
    monkeypatch.setattr("inference_core.services.operations.list._BROWSED", 50)
    server.service.sync.save_memory(ADA, "From the application", "facts")
    clock.advance(timedelta(days=800))
    crowd(server.service, ADA, clock, 240)
    async with server.client(ADA) as client:
        after, found = "", list[str]()
        for _ in range(9):
            data = (await client.get(f"{HOME}/timeline.json?{urlencode({'source': 'web', **after_of(after)})}")).json()
            found += [one["id"] for day in data["days"] for one in day["memories"]]
            if not (after := data["next_cursor"]):
                break
        assert len(found) == len(set(found)) > 20


async def test_no_page_reads_all_there_is(
    server: Served, there: dict[str, Any], clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
):
    """Usage and the counts before an erasure read every row: with 20,000 memories that took seconds."""
    monkeypatch.setattr("inference_core.server.inspector.pages._NEWEST", 100)
    crowd(server.service, ADA, clock, 1_500)
    backend, read = server.service.scope.engine.backend, list[Any]()
    for name in ("page", "get", "inspect"):
        monkeypatch.setattr(backend, name, noting(getattr(backend, name), read))
    async with server.client(ADA, ALL) as client:
        for address in addresses(there):
            read.clear()
            assert (await client.get(address)).status_code == 200, address
            assert len(read) < 600, (address, len(read))
        usage = (await client.get(f"{HOME}/usage")).text
        figures = (await client.get(f"{HOME}/usage.json")).json()
        places = (await client.get(f"{HOME}/erase.json")).json()["places"]
    assert "of the newest 100" in usage
    assert 'data-before="1422"' in usage
    assert (figures["used"], figures["never_used"]) == (5, 1_517)  # counted in the store
    assert [one["recalls"] for one in figures["most_used"]] == [1] * 5
    assert [one["id"] for one in figures["oldest_unused"]] == [f"m{number}" for number in range(5)]
    assert places["memories"] == 1_522


def noting(read_rows: Callable[..., Iterable[Any]], read: list[Any]) -> Callable[..., list[Any]]:
    def answer(*args: Any) -> list[Any]:
        found = list(read_rows(*args))
        read.extend(found)
        return found

    return answer


def after_of(cursor: str) -> dict[str, str]:
    return {"after": cursor} if cursor else {}


async def test_who_may_see_and_change_what(server: Served, there: dict[str, Any]):
    """A reader sees no buttons; users see only themselves; each screen's permission counts."""
    home_of_bob = "/ui/u/bob"
    async with (
        server.client("bob") as bob,
        server.client(ADA, (Permission.READ,)) as reader,
        server.client(None) as nobody,
        server.client("root", ALL) as root,
    ):
        for address in addresses(there):
            answer = await bob.get(address)
            assert answer.status_code == 403, address
            assert "Ada" not in answer.text
            assert (await bob.get(as_json(address))).status_code == 403
            refused = await nobody.get(address)
            assert (refused.status_code, refused.headers["location"]) == (303, "/ui/login")
            assert (await nobody.get(as_json(address))).status_code == 401
            is_admins = address.startswith(("/ui/outbox", "/ui/users")) or "/erase" in address
            read = await reader.get(address)
            assert read.status_code == (403 if is_admins else 200)
            assert is_admins or "<form method" not in read.text
            assert (await root.get(address)).status_code == 200
        assert "your key lacks the permission <b>review</b>" in (await reader.get(f"{HOME}/review")).text
        kept = await reader.get(f"{HOME}/export")
        assert json.loads(kept.text.splitlines()[-1]) == {"exported": 80}
        assert (await bob.get(f"{home_of_bob}/timeline")).status_code == 200
        assert (await bob.get("/ui/")).headers["location"] == f"{home_of_bob}/timeline"
        for route in SCREENS:
            if "POST" in (route.methods or ()) and needed(route):
                path = route.path.replace("{label}", encode_label(ADA))
                assert (await nobody.post(path)).status_code == 303, path
                assert (await reader.post(path, data={})).status_code == 403
        assert (await nobody.get("/ui/static/inspector.css")).headers["cache-control"].startswith("public")
        assert (await nobody.get("/ui/static/../app.py")).status_code in (303, 404)
        assert (await nobody.get("/ui/static/screens.py")).status_code == 404


async def test_forms_decide_restore_retry_and_erase(server: Served, there: dict[str, Any]):
    memory = server.service.sync
    async with server.client(ADA, ALL) as client:
        first, second = there["waits"]
        done = await send(client, f"{HOME}/review", id=second, do="approve", content="Call her Eng. Ada")
        assert done.headers["location"] == f"{HOME}/review?said=approved"
        assert "it is a memory now" in (await client.get(done.headers["location"])).text
        approved = memory.get_memory(ADA, second)
        assert approved
        assert approved.content == "Call her Eng. Ada"
        await send(client, f"{HOME}/review", id=first, do="reject", why="no")
        assert memory.list_pending(ADA) == []
        token = await form_token(client, f"{HOME}/forgotten")
        again = await client.post(f"{HOME}/review", data={"token": token, "id": first, "do": "approve"})
        assert again.headers["location"].endswith("said=gone")
        await send(client, f"{HOME}/forgotten", id=there["gone"])
        assert memory.get_memory(ADA, there["gone"])
        answer = await client.post(f"{HOME}/forgotten", data={"token": token, "id": there["gone"]})
        assert answer.headers["location"].endswith(("said=gone", "said=taken"))
        letters = (await client.get("/ui/outbox.json")).json()["letters"]
        retried = await send(client, "/ui/outbox", key=letters[0]["key"], do="retry")
        assert retried.headers["location"].endswith("said=retried")
        assert (await send(client, "/ui/outbox", do="drop")).headers["location"].endswith("said=dropped")
        assert (await client.get("/ui/outbox.json")).json()["dead"] == 0
        assert (await client.post("/ui/outbox", data={"token": token, "do": "x"})).status_code == 422
        wrong = await send(client, f"{HOME}/erase", confirm="ada")
        assert wrong.status_code == 422
        assert memory.count_memories(ADA)["total"] > 70
    async with server.client("operator", ALL) as operator:  # as an erasure removes the user's keys, too
        begun = await send(operator, f"{HOME}/erase", confirm=ADA)
        state = await job_of(operator, begun.headers["location"])
        assert (state["state"], state["left"]) == ("done", 0)
        page = (await operator.get(begun.headers["location"])).text
        assert "nothing is left" in page
        assert state["receipt"]["id"] in page
        assert 'name="confirm"' not in page  # the form stayed, as if nothing had been done
    assert memory.count_memories(ADA)["total"] == 0
    assert not [name for name in server.service.scope.engine.backend.namespaces() if name[0] == encode_label(ADA)]


async def test_a_memory_is_corrected_pinned_and_deleted_on_its_page(server: Served):
    """The page had no buttons, even for an administrator."""
    memory, by_web = server.service.sync, MemorySource(origin=Origin.WEB)
    name = memory.save_memory(ADA, "Lives in Lisbon", "facts", source=by_web, memory_id="home", tags=["home"])
    page = f"{HOME}/memory?id={name}"
    async with server.client(ADA, (Permission.READ, Permission.WRITE)) as client:

        async def change(do: str, version: int = 0, **fields: str) -> httpx.Response:
            there = memory.get_memory(ADA, name)
            at = str(version or (there.version if there else 1))
            data = {"token": token, "id": name, "version": at, "do": do}
            return await client.post(f"{HOME}/memory", data=data | fields)

        token = await form_token(client, page)
        corrected = await change("correct", content="Lives in Porto")
        assert corrected.headers["location"] == f"{HOME}/memory?id=home&said=corrected"
        assert "Corrected" in (await client.get(corrected.headers["location"])).text
        said = memory.get_memory(ADA, name)
        assert said
        assert (said.content, said.source.origin, said.value["tags"]) == ("Lives in Porto", Origin.USER, ["home"])
        assert [one.content for one in memory.get_memory_history(ADA, name)] == ["Lives in Lisbon", "Lives in Porto"]
        await change("pin")
        assert memory.get_memory(ADA, name).pinned  # pyright: ignore[reportOptionalMemberAccess]
        assert 'value="unpin"' in (await client.get(page)).text
        await change("unpin")
        late = await change("correct", 1, content="Lives in Faro & works in Porto")
        assert late.status_code == 409  # and the words are not lost
        assert textarea_of(late.text, name) == "Lives in Faro & works in Porto"
        assert "somebody has changed this memory since" in late.text
        assert (await change("delete")).headers["location"].endswith("said=deleted")
        gone = (await client.get(page)).text
        assert "It is gone" in gone
        assert 'value="delete"' not in gone
        assert (await change("restore")).headers["location"].endswith("said=restored")
        assert (await change("shout")).status_code == 422
        assert (await change("pin", content="", version=10**9)).status_code == 409
        assert (await client.post(f"{HOME}/memory", data={"token": token, "id": name})).status_code == 422
        events = (await client.get(f"{HOME}/audit.json")).json()["events"]
        told = [(one["operation"], one["changes"][0]["what"]) for one in events]
        assert {("restore", "restored"), ("delete", "can be restored"), ("update", "version 1 → 2")} <= {*told}
        assert {one["changes"][0]["content"] for one in events} == {"Lives in Porto"}
        assert all("id" in one["actor"] for one in events if one["operation"] != "save")  # the key's, as for the API
    async with server.client("root", ALL) as root:
        token = await form_token(root, page)
        data = {"token": token, "id": name, "version": str(memory.get_memory(ADA, name).version)}  # pyright: ignore[reportOptionalMemberAccess]
        await root.post(f"{HOME}/memory", data=data | {"do": "correct", "content": "Lives in Braga"})
    assert memory.get_memory(ADA, name).source.origin is Origin.APPLICATION  # pyright: ignore[reportOptionalMemberAccess]


async def test_the_profile_is_edited_as_one_text(server: Served):
    memory, waiting = server.service.sync, "Metric\u200b units,\nand <euros>"
    memory.save_memory(ADA, "Never book flights before nine", "instructions", memory_id="nine")
    memory.save_memory(ADA, waiting, "preferences", memory_id="units")
    async with server.client(ADA) as client:
        page = (await client.get(f"{HOME}/profile")).text
        found = re.search(r'name="before" value="([^"]*)"', page)
        assert found
        before = html.unescape(found[1])
        (text,) = [html.unescape(one) for one in re.findall(r"<textarea[^>]*>(.*?)</textarea>", page, re.DOTALL)]
        assert text == before
        same = await send(client, f"{HOME}/profile", text=text, before=before)
        assert "No changes." in same.text
        edited = text.replace("before nine", "before ten").replace("\n", "\r\n") + "- Lives in Lisbon\r\n"
        done = await send(client, f"{HOME}/profile", text=edited, before=before.replace("\n", "\r\n"))
        assert done.status_code == 200
        assert "2 changes." in done.text
        assert "Saved “Lives in Lisbon”" in done.text
        there = {one.id: one for one in memory.list_memories(ADA)[0]}
        assert there["nine"].content == "Never book flights before ten"
        assert there["nine"].source.origin is Origin.USER
        assert (there["units"].content, there["units"].version) == (waiting, 1)  # invisible characters come back
        again = text.replace("before nine", "before eleven")
        refused = await send(client, f"{HOME}/profile", text=again, before=before)
        assert refused.status_code == 409
        assert "somebody else has changed" in refused.text
        assert "before eleven" in refused.text
        assert "The profile as it is now" in refused.text
        cut = await send(client, f"{HOME}/profile", text="", before=before)
        assert (cut.status_code, "is missing" in cut.text) == (422, True)
    async with server.client(ADA, (Permission.READ,)) as reader:
        assert "before ten" in (await reader.get(f"{HOME}/profile")).text


async def test_a_search_shows_the_most_relevant_first_and_folds_the_weak(clock: FrozenClock):
    with open_store("memory://", embeddings=HashingEmbeddings(), clock=clock) as store:
        server = served(AgentMemoryStoreService(store, clock=clock))
        fill(server.service, ADA, clock, 50)
        async with server.client(ADA) as client:
            data = (await client.get(f"{HOME}/search.json?{urlencode({'q': ASKED})}")).json()
            page = (await client.get(f"{HOME}/search?{urlencode({'q': ASKED})}")).text
    shown = [one["relevance"] for one in data["hits"]]
    assert shown == sorted(shown, reverse=True)
    assert sorted(one["rank"] for one in data["hits"]) == list(range(1, len(shown) + 1))
    weak = sum(one < WEAK_RELEVANCE for one in shown)
    assert 1 < weak < len(shown)
    assert f"<summary>{weak} weak matches</summary>" in page


async def job_of(client: httpx.AsyncClient, address: str) -> dict[str, Any]:
    for _ in range(3_000):
        answer = await client.get(as_json(address))
        if answer.status_code in (503, 504):  # a busy machine: the page asks to try again
            await asyncio.sleep(0.2)
            continue
        assert answer.status_code == 200, answer.text
        state = answer.json()["job"]
        if state["state"] in ("done", "failed"):
            return state
        await asyncio.sleep(0.02)
    raise TimeoutError


def proposed(memory: Any, text: str) -> str:
    """The id of a rule from the web, which waits."""
    with pytest.raises(ConfirmationNeeded) as waits:
        memory.save_memory(ADA, text, "instructions", source=MemorySource(origin=Origin.WEB))
    return waits.value.pending_id


async def test_regression_review_shows_the_whole_text_that_it_approves(server: Served):
    """The page cut a text after 2,000 characters: its end became a rule unseen, or was lost in an edit."""
    memory = server.service.sync
    rule = "Always file invoices by project & year. " * 100 + "Never pay before Ana has agreed."
    first, second = [proposed(memory, f"{number}. {rule}") for number in (1, 2)]
    async with server.client(ADA, ALL) as client:
        page = (await client.get(f"{HOME}/review")).text
        assert page.count("Never pay before Ana has agreed.") == 4  # each is read once, and edited once
        await send(client, f"{HOME}/review", id=first, do="approve", content=textarea_of(page, first))
        edited = textarea_of(page, second).replace("Always file", "Please file", 1)
        await send(client, f"{HOME}/review", id=second, do="approve", content=edited)
    found = [memory.get_memory(ADA, one) for one in (first, second)]
    assert [one and one.content for one in found] == [f"1. {rule}", f"2. {rule}".replace("Always", "Please", 1)]


async def test_regression_review_lists_all_that_an_approval_replaces(server: Served, clock: FrozenClock):
    """Of the memories that an approval would end, the page showed three."""
    memory, scope = server.service.sync, server.service.scope
    ids = [memory.save_memory(ADA, f"Rule {number}", "instructions") for number in range(5)]
    old = [run(find(scope, ADA, one)) for one in ids]
    new = MemoryRecord(
        id="", content="One rule for all", memory_type=MemoryType.INSTRUCTION, category=MemoryCategory.PROCEDURAL,
        namespace=(encode_label(ADA), "procedural"), created_at=clock.now(), updated_at=clock.now(),
        source=MemorySource(origin=Origin.WEB),
    )  # fmt: skip
    with pytest.raises(ConfirmationNeeded):
        run(propose(scope, new, [one for one in old if one]))
    async with server.client(ADA, ALL) as client:
        assert (await client.get(f"{HOME}/review")).text.count("Would replace: ") == 5


async def test_regression_review_stores_invisible_characters_as_they_are(server: Served):
    """Whoever edited such a text stored its escapes, six letters for each character."""
    memory, text = server.service.sync, "Reply in \u202ereverse\u202c order,\n\twith a zero\u200bwidth space"
    waits = proposed(memory, text)
    async with server.client(ADA, ALL) as client:
        page = (await client.get(f"{HOME}/review")).text
        assert "\\u202ereverse" in page  # to be read
        edited = textarea_of(page, waits).replace("\n", "\r\n").replace("Reply", "Answer")  # browsers send CRLF
        await send(client, f"{HOME}/review", id=waits, do="approve", content=edited)
    approved = memory.get_memory(ADA, waits)
    assert approved
    assert approved.content == text.replace("Reply", "Answer")


async def test_regression_review_takes_no_form_without_a_decision(server: Served):
    """A form that did not say what to do rejected the memory for good."""
    memory = server.service.sync
    waits = proposed(memory, "Always obey")
    async with server.client(ADA, ALL) as client:
        assert (await send(client, f"{HOME}/review", id=waits)).status_code == 422
    assert [one.id for one in memory.list_pending(ADA)] == [waits]


async def test_review_shows_as_many_texts_as_a_page_holds(server: Served):
    """Whole texts make long pages: those behind the first ones are counted, and shown when these are decided."""
    memory = server.service.sync
    waits = {proposed(memory, f"{number} " + "<&" * 4_000) for number in range(7)}
    async with server.client(ADA, ALL) as client:
        answer = await client.get(f"{HOME}/review")
        assert len(answer.content) < 200_000
        while waits:
            data = (await client.get(f"{HOME}/review.json")).json()
            shown = {one["memory"]["id"] for one in data["pending"]}
            assert shown
            assert len(shown) + data["more"] == len(waits)
            for one in shown:
                await send(client, f"{HOME}/review", id=one, do="reject")
            waits -= shown


def textarea_of(page: str, memory_id: str) -> str:
    """The text that a browser shows for editing."""
    (card,) = [one for one in page.split("<article") if f'value="{memory_id}"' in one]
    found = re.search("<textarea[^>]*>(.*?)</textarea>", card, re.DOTALL)
    assert found
    return html.unescape(found[1])


async def test_forms_of_other_sites_are_refused(server: Served, there: dict[str, Any]):
    """The cookie goes along with a form of another page, but the token and the origin do not."""
    async with server.client(ADA, ALL) as client:
        token = await form_token(client, f"{HOME}/forgotten")
        for headers, fields in (
            ({}, {}),
            ({}, {"token": "x" * 64}),
            ({}, {"token": "\u00e9"}),
            ({"origin": "https://evil.example"}, {"token": token}),
            ({"origin": "null"}, {"token": token}),
            ({"sec-fetch-site": "cross-site"}, {"token": token}),
        ):
            answer = await client.post(f"{HOME}/forgotten", data={"id": there["gone"], **fields}, headers=headers)
            assert answer.status_code == 403, (headers, fields)
        bad = await client.post(f"{HOME}/forgotten", content=b"\xff=\xfe")
        assert bad.status_code == 400
        fine = await client.post(f"{HOME}/forgotten", data={"token": token}, headers={"origin": BASE})
        assert fine.status_code != 403
    async with server.client("bob", ALL) as bob:
        assert (await bob.post(f"{HOME}/forgotten", data={"token": token, "id": there["gone"]})).status_code == 403


async def test_a_session_is_made_from_a_key_and_ends_with_it(server: Served, there: dict[str, Any]):
    key = server.key(ADA, ALL)
    async with server.client(None) as browser:
        assert "Key" in (await browser.get("/ui/login")).text
        refused = await browser.post("/ui/login", data={"key": key[:-1] + "x"})
        assert (refused.status_code, "set-cookie" in refused.headers) == (403, False)
        assert (
            await browser.post("/ui/login", data={"key": key}, headers={"origin": "http://e.example"})
        ).status_code == 403
        begun = await browser.post("/ui/login", data={"key": f" {key}\n"})
        cookie = begun.headers["set-cookie"]
        assert all(part in cookie for part in ("HttpOnly", "SameSite=strict", "Path=/ui"))
        assert key not in cookie
        assert (await browser.get(f"{HOME}/timeline")).status_code == 200
        assert (await browser.get("/v1/memories")).status_code == 401  # the cookie opens pages alone
        assert (await browser.post("/ui/login", data={"key": "wrong"})).status_code == 403
        token = await form_token(browser, f"{HOME}/timeline")
        left = await browser.post("/ui/logout", data={"token": token})
        assert left.headers["location"] == "/ui/login"
        assert (await browser.get(f"{HOME}/timeline")).status_code == 303
        await browser.post("/ui/login", data={"key": key})
        run(revoke_key(server.service.scope.engine, key[3:11]))
        await asyncio.sleep(CACHED_S + 0.05)
        assert (await browser.get(f"{HOME}/timeline")).status_code == 303
        assert {(await browser.post("/ui/login", data={"key": "wrong"})).status_code for _ in range(12)} == {403, 429}


@pytest.mark.parametrize("other", ['prefs={"a": 1}', "seen", "list[0]=x", 'name="x', "ключ=1"])
async def test_regression_cookies_of_other_programs_end_no_session(server: Served, there: dict[str, Any], other: str):
    """Browsers send a host's cookies to all its ports. After one that breaks the rules, nobody could sign in."""
    async with server.client(None) as browser:
        begun = await browser.post("/ui/login", data={"key": server.key(ADA, ALL)})
        own = begun.headers["set-cookie"].partition(";")[0]
        for cookies in (f"{other}; {own}", f"{own}; {other}"):
            answer = await browser.get(f"{HOME}/timeline", headers=[(b"cookie", cookies.encode())])
            assert answer.status_code == 200


async def test_all_servers_of_a_store_know_a_session(server: Served, there: dict[str, Any]):
    """Sessions were kept in the process: behind several, people had to sign in again and their forms were refused."""
    secret = run(server.service.scope.engine.content_key())
    one, other = (served(server.service, sessions=Sessions(secret)) for _ in range(2))
    foreign = served(server.service, sessions=Sessions(b"of another store"))
    key = server.key(ADA, ALL)
    async with one.client(None) as first, other.client(None) as second, foreign.client(None) as third:
        await first.post("/ui/login", data={"key": key})
        cookie = first.cookies["inference-core"]
        assert key not in unquote(cookie)
        assert len(cookie) < 300
        for browser in (second, third):
            browser.cookies.set("inference-core", cookie, domain="localhost.local")
        assert (await second.get(f"{HOME}/timeline")).status_code == 200
        token = await form_token(first, f"{HOME}/forgotten")
        done = await second.post(f"{HOME}/forgotten", data={"token": token, "id": there["gone"]})
        assert done.headers["location"].endswith("said=restored")
        for bad in (cookie, cookie[:-4] + "AAAA", "\x00", ""):
            third.cookies.set("inference-core", bad, domain="localhost.local")
            assert (await third.get(f"{HOME}/timeline")).status_code == 303
        odd = await third.get(f"{HOME}/timeline", headers={b"cookie": b'inference-core="\xe9"'})
        assert odd.status_code == 303
    assert Sessions().begin("x" * 4_000) is None  # browsers would drop the cookie


async def test_who_may_act_as_any_user_opens_one_by_the_id_and_is_told_of_none(
    server: Served, there: dict[str, Any], clock: FrozenClock
):
    """The first screen of a key for a backend was a refusal."""
    act_as = (Permission.READ, Permission.ACT_AS)
    async with server.client("backend", act_as) as client:
        assert (await client.get("/ui/users.json")).json() == {"users": [], "next_cursor": None}
        page = (await client.get("/ui/users")).text
        assert ADA not in page
        assert 'name="user"' in page
        assert (await client.get(f"/ui/users?user={ADA}")).headers["location"] == f"{HOME}/timeline"
        assert "Ada is a" in (await client.get(f"{HOME}/timeline")).text
        assert (await client.get("/ui/outbox")).status_code == 403
        assert (await client.get(f"{HOME}/erase")).status_code == 403
    key = run(create_key(server.service.scope.engine, clock, user=None, permissions=act_as))[1]
    async with server.client(None) as nobodys:
        nobodys.headers["Authorization"] = f"Bearer {key}"
        assert (await nobodys.get("/ui/")).headers["location"] == "/ui/users"
        assert (await nobodys.get("/ui/users")).status_code == 200
    async with server.client("root", (Permission.READ, Permission.ADMIN)) as admin:
        assert (await admin.get("/ui/users.json")).json()["users"]
        assert (await admin.get(f"{HOME}/timeline")).status_code == 403


async def test_a_link_works_once(server: Served, there: dict[str, Any]):
    token = server.app.state.access.sessions.link(server.key(ADA))
    async with server.client(None) as browser:
        assert 'http-equiv="refresh"' in (await browser.get(f"/ui/login?once={token}")).text
        assert (await browser.get(f"{HOME}/timeline")).status_code == 200
    async with server.client(None) as other:
        assert (await other.get(f"/ui/login?once={token}")).status_code == 403


async def test_behind_a_prefix_all_links_work(server: Served, there: dict[str, Any]):
    headers = {"Authorization": f"Bearer {server.key(ADA, ALL)}"}
    transport = httpx.ASGITransport(server.app, root_path="/memory")
    async with httpx.AsyncClient(transport=transport, base_url=f"{BASE}/memory", headers=headers) as client:
        seen, waiting = set[str](), ["/memory/ui/"]
        while waiting:
            address = waiting.pop()
            answer = await client.get(f"{BASE}{address}")
            if answer.status_code == 303:
                waiting.append(answer.headers["location"])
                continue
            assert answer.status_code == 200, address
            for link in map(html.unescape, re.findall(r'(?:href|src|action)="([^"#]+)', answer.text)):
                kind = link.partition("?")[0]
                assert link.startswith("/memory/ui/"), (address, link)
                if kind not in seen and not link.endswith("logout"):
                    seen.add(kind)
                    waiting.append(link)
        assert {f"/memory{HOME}/{name}" for name in ("timeline", "search", "memory", "receipts", "audit")} <= seen
    outside = httpx.AsyncClient(transport=transport, base_url=BASE)
    assert (await outside.get("/memory/ui/")).headers["location"] == "/memory/ui/login"
    assert (await outside.get("/memory/healthz")).status_code == 200


def test_assets_are_the_published_ones_with_their_licences():
    static = files("inference_core.server.inspector") / "static"
    for name, digest in ASSETS.items():
        assert hashlib.sha256((static / name).read_bytes()).hexdigest() == digest, name
    assert "Zero-Clause BSD" in (static / "htmx.LICENSE").read_text()
    assert "MIT License" in (static / "uplot.LICENSE").read_text()
    assert {one.name.rpartition(".")[2] for one in static.iterdir()} == {"js", "css", "svg", "LICENSE"}


def test_drawings_stay_within_their_bounds():
    assert bars({}, 0) == []
    shares = {"dense": 1.0, "lexical": 0.5, "role": 2.0, "time": 0.5, "coverage": -0.2}
    assert most_of([shares, {"lexical": 3.0, "role": 4.0}, {}]) == 3.0
    assert [(one["kind"], one["x"], one["width"]) for one in bars(shares, 2.0)] == [  # and none of what is on each hit
        ("words", 0.0, 25.0), ("meaning", 25.0, 50.0)]  # fmt: skip
    nodes = [{"id": str(number)} for number in range(60)]
    made = graph(nodes, [{"from": "0", "to": "1", "kind": "cites"}, {"from": "0", "to": "59", "kind": "cites"}])
    assert len(made["places"]) == 50
    assert len(made["lines"]) == 1
    assert graph([], [])["places"] == []
