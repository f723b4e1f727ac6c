"""The inspector in Chromium: every screen, light and dark, with few and many memories; and the pictures of the docs."""

# The browser's library is not part of dev, so what it hands to callbacks has no type.
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

import os
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import numpy as np
import pytest
import uvicorn
from inspector_support import ADA, ASKED, HOSTILE, fail_messages, fill
from support import HashingEmbeddings
from test_inspector import HOME, addresses

from inference_core import AgentMemoryStoreService, open_store
from inference_core.server.app import create_app
from inference_core.server.identity.auth import FixedKey, Permission, Principal
from inference_core.server.identity.gate import Access
from inference_core.testing import FrozenClock

if TYPE_CHECKING:
    from PIL import Image

Browser = Any

CHROMIUM: Final = Path("/usr/bin/chromium")
AXE: Final = os.environ.get("INFERENCE_CORE_AXE")
"""The file axe.min.js of the npm package axe-core; without it, accessibility is not checked, except with --full."""
KEY: Final = "k" * 43


@contextmanager
def running(service: AgentMemoryStoreService, ledger: Path) -> Generator[tuple[str, str]]:
    """A server for administrators; its address, and a link that signs in once."""
    access = Access(checks=[FixedKey(KEY, Principal(ADA, frozenset(Permission), "inspect"))], rate=1e6, burst=10**6)
    app = create_app(service, access, [], ledger=ledger)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    address = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    yield address, f"{address}/ui/login?once={access.sessions.link(KEY)}"
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="module")
def browser(request: pytest.FixtureRequest) -> Iterator[Browser]:
    is_full = bool(request.config.getoption("--full"))
    needed = {
        "the extra browser": find_spec("playwright") is not None,
        str(CHROMIUM): CHROMIUM.exists(),
        "INFERENCE_CORE_AXE": bool(AXE) or not is_full,
    }
    if missing := [name for name, is_there in needed.items() if not is_there]:
        (pytest.fail if is_full else pytest.skip)(f"needs {', '.join(missing)}, see CONTRIBUTING.md")
    playwright: Any = import_module("playwright.sync_api")
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield chromium
        chromium.close()


class Watched:
    """A page of the inspector, signed in, with all that its browser says and asks for."""

    def __init__(self, browser: Browser, address: str, link: str, **options: Any) -> None:
        self.address = address
        self.context = browser.new_context(viewport={"width": 1280, "height": 860}, **options)
        self.page: Any = self.context.new_page()
        self.said = list[str]()
        self.foreign = list[str]()
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda one: None if one.url.startswith(address) else self.foreign.append(one.url))
        self.page.goto(link)
        self.page.wait_for_url(f"{address}{HOME}/timeline")

    def open(self, path: str) -> None:
        answer = self.page.goto(f"{self.address}{path}", wait_until="networkidle")
        assert answer
        assert answer.status == 200, path
        assert len(answer.body()) < 200_000, path

    def check_width(self, path: str) -> None:
        """Raises AssertionError if something can be reached only by scrolling to the side, or words are broken."""
        measure = """() => [
            document.documentElement.scrollWidth - document.documentElement.clientWidth,
            [...document.querySelectorAll('td')].filter(one => one.offsetHeight > 160 && one.offsetWidth < 60).length]
        """
        over, broken = self.page.evaluate(measure)
        assert (over, broken) == (0, 0), path

    def check(self, path: str) -> None:
        """Raises AssertionError if the page said something, asked somebody else, or is not accessible."""
        assert (self.said, self.foreign) == ([], []), path
        if AXE:
            self.page.evaluate(Path(AXE).read_text(encoding="utf-8"))
            tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
            found = self.page.evaluate("tags => axe.run({runOnly: tags})", tags)
            faults = [(one["id"], [node["html"][:200] for node in one["nodes"][:3]]) for one in found["violations"]]
            assert not faults, (path, faults)


@contextmanager
def looking(browser: Browser, folder: Path, count: int, **options: Any) -> Generator[tuple[Watched, dict[str, Any]]]:
    """A browser at the memories of Ada, ``count`` of them made up; with the ids of what there is to see."""
    clock = FrozenClock()
    with open_store(f"sqlite:///{folder}/memory.db", embeddings=HashingEmbeddings(), clock=clock) as store:
        service = AgentMemoryStoreService(store, clock=clock)
        fail_messages(service, clock, "Could you move the site visit to Friday?", "Book the train to Porto")
        there = fill(service, ADA, clock, count)
        with running(service, folder / "erasures.jsonl") as (address, link):
            yield Watched(browser, address, link, **options), there


@pytest.mark.full
@pytest.mark.parametrize("count", [1_000, 20_000])
def test_every_screen_is_quiet_and_accessible(browser: Browser, tmp_path: Path, count: int):
    with looking(browser, tmp_path, count) as (seen, there):
        for path in [*addresses(there), f"{HOME}/memory?id=m{count // 2}", "/ui/login"]:
            for scheme, width in (("light", 390), ("dark", 1280)):
                seen.page.set_viewport_size({"width": width, "height": 860})
                seen.page.emulate_media(color_scheme=scheme)
                seen.open(path)
                seen.check(f"{path} {scheme}")
                seen.check_width(f"{path} {width}")


def test_by_keyboard_from_a_search_to_a_prompt(browser: Browser, tmp_path: Path):
    with looking(browser, tmp_path, 50) as (seen, _):
        page, keys = seen.page, seen.page.keyboard
        keys.press("/")
        keys.type("three suppliers of bearings")
        keys.press("Enter")
        page.wait_for_url("**/search?q=three+suppliers+of+bearings")
        page.focus("#q")
        until(seen, "a.text", "Enter")
        page.wait_for_url("**/memory?id=*")
        until(seen, "#told ~ table a", "Enter")
        page.wait_for_url("**/receipt?id=*")
        assert "Compared three suppliers" in page.inner_text("#block + pre")
        page.goto(f"{seen.address}{HOME}/search")
        page.fill("#q", "daughter starts school")
        page.wait_for_selector(".hits >> text=Ida starts school")  # as one types
        page.goto(f"{seen.address}{HOME}/timeline")
        before = page.locator(".entry").count()
        page.click(".more a")
        page.wait_for_function("before => document.querySelectorAll('.entry').length > before", arg=before)
        seen.check("by keyboard")


def test_on_a_phone_every_page_fits_and_the_menu_is_folded(browser: Browser, tmp_path: Path):
    """Words of tables were broken into letters, pages scrolled to the side, and 240 px of links began each."""
    with looking(browser, tmp_path, 50) as (seen, there):
        page = seen.page
        page.set_viewport_size({"width": 390, "height": 860})
        for path in addresses(there):
            seen.open(path)
            seen.check_width(path)
            assert page.locator("h1").bounding_box()["y"] < 120, path
        seen.open(f"{HOME}/timeline")
        assert not page.is_visible("nav >> text=Forgotten")
        page.click("text=Menu")
        page.click("nav >> text=Forgotten")
        page.wait_for_url("**/forgotten")
        assert page.locator("td button").bounding_box()["x"] < 300


def test_the_focus_stays_where_somebody_works(browser: Browser, tmp_path: Path):
    """After a form, people who use the keyboard had to begin at the top of the page again."""
    with looking(browser, tmp_path, 5) as (seen, there):
        page = seen.page
        focused = "[document.activeElement.textContent, document.activeElement.getAttribute('aria-describedby')]"
        seen.open(f"{HOME}/review")
        page.locator("text=Reject").nth(1).press("Enter")
        page.wait_for_url("**/review?said=rejected")
        assert page.evaluate(focused) == ["Reject", "said"]  # of the one that is left
        page.keyboard.press("Enter")
        page.wait_for_selector("text=Nothing waits")
        assert page.evaluate("document.activeElement.id") == "said"
        seen.open(f"{HOME}/memory?id={there['ids'][0]}")
        page.focus("text=Pin")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=Unpin")
        assert page.evaluate(focused) == ["Unpin", "said"]
        seen.check("after forms")
        seen.open(f"{HOME}/profile")
        page.fill("#text", page.input_value("#text").replace("- Window seats on trains", "- Aisle seats on trains"))
        page.press("text=Save the changes", "Enter")
        page.wait_for_selector(".said >> text=Changed “Window seats on trains”")
        assert page.evaluate(focused) == ["Save the changes", "said"]
        seen.check("after an edit")


def until(seen: Watched, selector: str, key: str) -> None:
    """Moves on with Tab until something that ``selector`` finds has the focus, and presses ``key``."""
    for _ in range(60):
        seen.page.keyboard.press("Tab")
        if seen.page.evaluate("selector => document.activeElement.matches(selector)", selector):
            seen.page.keyboard.press(key)
            return
    raise AssertionError(selector)


def test_hostile_memories_do_nothing_in_a_browser(browser: Browser, tmp_path: Path):
    with open_store("memory://", embeddings=None) as store:
        service = AgentMemoryStoreService(store)
        ids = [
            service.sync.save_memory(ADA, text, "facts", topic=text[:60], tags=[text[:30]], session_id=text[:60])
            for text in HOSTILE
        ]
        service.sync.delete_memory(ADA, ids[1])
        with running(service, tmp_path / "erasures.jsonl") as (address, link):
            seen = Watched(browser, address, link)
            asked = list[str]()
            seen.page.on("request", lambda one: asked.append(one.url))
            for path in (
                "timeline",
                "search?q=owned+look",
                "forgotten",
                "usage",
                *(f"memory?id={one}" for one in ids[:4]),
            ):
                seen.open(f"{HOME}/{path}")
                assert "owned" not in seen.page.title()
                assert not [url for url in asked if "steal" in url]
                seen.check(path)


@pytest.mark.full
def test_without_javascript_everything_can_be_read(browser: Browser, tmp_path: Path):
    with looking(browser, tmp_path, 60, java_script_enabled=False) as (seen, there):
        for path in addresses(there):
            seen.open(path)
            assert seen.page.inner_text("h1")
        seen.open(f"{HOME}/timeline")
        seen.page.fill("[data-find]", "bearings")
        seen.page.press("[data-find]", "Enter")
        assert "Compared three suppliers" in seen.page.inner_text(".hits")
        seen.open(f"{HOME}/usage")
        assert seen.page.locator(".chart rect").count() > 10
        assert (seen.said, seen.foreign) == ([], [])


@pytest.mark.full
def test_the_pictures_of_the_documentation(browser: Browser, tmp_path: Path):
    """With INFERENCE_CORE_PICTURES=docs/images it makes them anew."""
    folder = Path(os.environ.get("INFERENCE_CORE_PICTURES", tmp_path / "pictures"))
    with looking(browser, tmp_path, 900) as (seen, there):
        pictures = {
            "inspector-timeline": f"{HOME}/timeline",
            "inspector-search": f"{HOME}/search?{urlencode({'q': ASKED})}",
            "inspector-memory": f"{HOME}/memory?id={there['ids'][16]}",
            "inspector-prompt": f"{HOME}/receipt?id={there['receipt']}",
            "inspector-review": f"{HOME}/review",
            "inspector-usage": f"{HOME}/usage",
        }
        folder.mkdir(parents=True, exist_ok=True)
        for name, path in pictures.items():
            seen.page.emulate_media(color_scheme="dark" if name in ("inspector-usage", "inspector-search") else "light")
            seen.page.set_viewport_size({"width": 1280, "height": 1120 if name == "inspector-memory" else 860})
            seen.open(path)
            with_few_colours(seen.page.screenshot()).save(folder / f"{name}.png", optimize=True)
            assert 10_000 < (folder / f"{name}.png").stat().st_size < 120_000


def with_few_colours(taken: bytes) -> Image.Image:
    """A picture whose 256 most frequent colours stay as they are; each other one becomes the nearest of them."""
    from PIL import Image

    pixels = np.asarray(Image.open(BytesIO(taken)).convert("RGB"))
    colours, which, counts = np.unique(pixels.reshape(-1, 3), axis=0, return_inverse=True, return_counts=True)
    kept = colours[np.argsort(-counts)[:256]]
    nearest = ((colours[:, None].astype(int) - kept[None].astype(int)) ** 2).sum(axis=2).argmin(axis=1)
    picture = Image.fromarray(nearest[which].reshape(pixels.shape[:2]).astype(np.uint8))
    picture.putpalette(kept.astype(np.uint8).tobytes())
    return picture
