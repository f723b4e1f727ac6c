"""What each role may do in a space, through the service, the memory tools and the command line.

What is expected stands in one place, the table of `docs/spaces.md`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from importlib import import_module
from itertools import product
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, Final

import pytest
from support import case, each

from inference_core import AgentMemoryStoreService, Space, Spaces, get_memory_tools, open_store
from inference_core.cli.app import run
from inference_core.errors import ConfirmationNeeded, InvalidInput
from inference_core.ingestion import analytics
from inference_core.lifecycle import forgetting
from inference_core.memory.spaces import SpaceRole
from inference_core.services import operations
from inference_core.services.operations.operation import MemoryOperation, operation
from inference_core.services.operations.scope import MemoryScope

PAGE: Final = Path(__file__).parents[2] / "docs/spaces.md"
ENG: Final = Space("eng")
FACT, RULE, SECRET = "fact", "rule", "harbour"
Attempt = Callable[[Any, Space], Any]
SERVICE: Final[Mapping[str, Mapping[str, Attempt]]] = {
    "recall, get, list, count, history, context": {
        "recall": lambda on, eng: on.recall_memories(eng, "deploys"),
        "recall by category": lambda on, eng: on.recall_by_category(eng, "semantic", "deploys"),
        "get": lambda on, eng: on.get_memory(eng, FACT),
        "list": lambda on, eng: on.list_memories(eng),
        "count": lambda on, eng: f"{SECRET} {on.count_memories(eng)['total'] == 2}",
        "history": lambda on, eng: on.get_memory_history(eng, FACT),
        "context": lambda on, eng: on.format_context_for_prompt(eng, "deploys"),
        "user context": lambda on, eng: on.get_user_context(eng),
        "user context with times": lambda on, eng: on.get_user_context_with_timestamps(eng),
    },
    "save a fact": {
        "save": lambda on, eng: on.save_memory(eng, "Another fact", "facts"),
        "save under an id": lambda on, eng: on.save_memory(eng, "Another fact", memory_id=FACT),
    },
    "save what guides agents: preference, instruction, procedure, pinned memory": {
        "save rule": lambda on, eng: on.save_memory(eng, "Always deploy", "instructions"),
        "save preference": lambda on, eng: on.save_memory(eng, "Likes Friday", "preferences"),
        "save procedure": lambda on, eng: on.save_memory(eng, "Press", "facts", category="procedural"),
        "save pinned": lambda on, eng: on.save_memory(eng, "Pinned", "facts", pinned=True),
        "save over a rule": lambda on, eng: on.save_memory(eng, "Nothing", "facts", memory_id=RULE),
    },
    "update, delete a fact": {
        "update": lambda on, eng: on.update_memory(eng, FACT, "Deploys on Tuesday"),
        "label": lambda on, eng: on.update_memory(eng, FACT, topic="deploying"),
        "delete": lambda on, eng: on.delete_memory(eng, FACT),
    },
    "update, delete what guides agents; pin a fact, make it a rule": {
        "update rule": lambda on, eng: on.update_memory(eng, RULE, "Never ask"),
        "label rule": lambda on, eng: on.update_memory(eng, RULE, topic="asking"),
        "make a rule": lambda on, eng: on.update_memory(eng, FACT, memory_type="instructions"),
        "pin": lambda on, eng: on.update_memory(eng, FACT, pinned=True),
        "delete rule": lambda on, eng: on.delete_memory(eng, RULE),
    },
    "review, grant, audit, why, receipts, delete all": {
        "pending": lambda on, eng: on.list_pending(eng),
        "approve": lambda on, eng: on.approve_pending(eng, session_id="proposed"),
        "reject": lambda on, eng: on.reject_pending(eng, session_id="proposed"),
        "grant": lambda on, eng: on.grant(eng, "admin", user="eve"),
        "revoke": lambda on, eng: on.revoke(eng, user="bob"),
        "grants": lambda on, eng: on.list_grants(eng),
        "audit": lambda on, eng: on.audit(eng),
        "verify": lambda on, eng: on.verify_audit(eng),
        "why": lambda on, eng: on.why(eng, FACT),
        "receipts": lambda on, eng: on.list_receipts(eng),
        "hold": lambda on, eng: on.hold(eng, "a case"),
        "delete all": lambda on, eng: on.delete_user_memories(eng),
    },
    "add messages to the outbox; list, update, delete by a tool": {
        "messages": lambda on, eng: on.add_messages(eng, ["hi"]),
        "profile": lambda on, eng: on.get_profile(eng),
        "edited profile": lambda on, eng: on.edit_profile(eng, "", ""),
    },
}
TOOLS: Final[Mapping[str, Mapping[str, tuple[str, Mapping[str, Any]]]]] = {
    "recall, get, list, count, history, context": {
        "recall": ("recall_memories_store", {"query": "deploys"}),
        "get": ("recall_memories_store", {"query": FACT}),
    },
    "save a fact": {"save": ("save_memory_store", {"content": "Another fact", "memory_type": "facts", "space": "eng"})},
    "save what guides agents: preference, instruction, procedure, pinned memory": {
        kind: ("save_memory_store", {"content": "Always deploy", "memory_type": kind, "space": "eng"})
        for kind in ("instructions", "preferences", "workflow")
    },
    "add messages to the outbox; list, update, delete by a tool": {
        "update": ("update_memory_store", {"memory_id": FACT, "content": "Deploys on Tuesday"}),
        "delete": ("delete_memory_store", {"memory_id": FACT}),
        "list": ("list_memories_store", {}),
    },
}
COMMANDS: Final[Mapping[str, Mapping[str, list[str]]]] = {
    "recall, get, list, count, history, context": {
        "recall": ["recall", "deploys"],
        "list": ["list"],
        "history": ["history", FACT],
        "context": ["context", "deploys"],
    },
    "save a fact": {"save": ["save", "Another fact", "--type", "facts"]},
    "save what guides agents: preference, instruction, procedure, pinned memory": {
        "save rule": ["save", "Always deploy", "--type", "instructions"],
        "save pinned": ["save", "Pinned", "--pinned"],
    },
    "update, delete a fact": {
        "update": ["update", FACT, "--content", "Deploys on Tuesday"],
        "delete": ["delete", FACT, "--yes"],
    },
    "update, delete what guides agents; pin a fact, make it a rule": {
        "update rule": ["update", RULE, "--content", "Never ask"],
        "make a rule": ["update", FACT, "--type", "instructions"],
        "pin": ["pin", FACT],
        "delete rule": ["delete", RULE, "--yes"],
    },
    "review, grant, audit, why, receipts, delete all": {
        "review": ["review"],
        "approve": ["review", "--session", "proposed", "--approve", "all"],
        "audit": ["audit"],
        "verify": ["audit", "verify"],
        "why": ["why", FACT],
        "delete all": ["delete", "--all", "--yes"],
    },
}
READS: Final = frozenset(SERVICE["recall, get, list, count, history, context"])
ROLES: Final = (None, *(role.name.lower() for role in SpaceRole))


def expected() -> dict[tuple[str, str | None], str]:
    """By row and role, what the page says: yes, no or waits; everything is refused without a role."""
    rows = [line.strip("|").split("|") for line in PAGE.read_text("utf-8").splitlines()]
    cells = {row[0].strip(): [one.strip() for one in row[1:]] for row in rows if len(row) == len(ROLES)}
    heads = [head.strip("`") for head in cells.pop("")]
    assert heads == list(ROLES[1:])
    assert {*cells} - {"---"} == {*SERVICE}
    return {(row, role): cells[row][at - 1] if at else "no" for row in SERVICE for at, role in enumerate(ROLES)}


EXPECTED: Final = expected()
FACES: Final[Mapping[str, Any]] = {"service": SERVICE, "tool": TOOLS, "command": COMMANDS}


def fill(service: Any) -> None:
    """A space with a fact, a rule and a proposal, and one member for each role."""
    service.save_memory(ENG, f"Deploys at the {SECRET}", "facts", memory_id=FACT)
    service.save_memory(ENG, "Ask before you deploy", "instructions", memory_id=RULE)
    for role in ROLES[1:]:
        service.grant(ENG, role, user=f"{role}-user")
    service.grant(ENG, "propose", user="bob")
    with pytest.raises(ConfirmationNeeded):
        service.save_memory(Space("eng", member="bob"), "Proposed", session_id="proposed")


def state(service: Any) -> tuple[Any, Any, int]:
    """What stands in the space, who has which role, and how much waits."""
    memories = sorted((one.id, str(one.value), one.version) for one in service.list_memories(ENG)[0])
    return memories, (service.list_grants(ENG), service.list_holds(ENG)), len(service.list_pending(ENG))


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database in which each role has a member."""
    path = tmp_path_factory.mktemp("roles") / "memory.db"
    with open_store(f"sqlite:///{path}", embeddings=None) as store:
        fill(AgentMemoryStoreService(store, spaces=Spaces()).sync)
    return path


@pytest.fixture(autouse=True)
def words_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No command loads a model."""
    monkeypatch.setenv("AGENT_MEMORY_EMBEDDINGS", "none")


def outcome(service: Any, face: str, attempt: Any, user: str, space: str, shown: Any, url: str) -> tuple[str, str]:
    """Whether the ``attempt`` of the user was done, waits or was refused, and what was answered."""
    match face:
        case "service":
            try:
                return "yes", str(attempt(service, Space(space, member=user)))
            except ConfirmationNeeded as waits:
                return "waits", str(waits)
            except InvalidInput as refused:
                return "no", str(refused)
        case "tool":
            name, arguments = attempt
            given = {key: space if key == "space" else value for key, value in arguments.items()}
            (tool,) = get_memory_tools(service, user, include_tools=[name])
            answer = tool.invoke(given)
            if answer.startswith(("✓", "Found")):
                return "yes", answer
            return "waits" if answer.startswith("✗ Not saved yet") else "no", answer
        case _:
            done = run([*attempt, "--url", url, "--user", user, "--space", space])
            answer = "".join(shown.readouterr())
            if "Not saved yet" in answer:
                return "waits", answer
            return "no" if done else "yes", answer


@pytest.mark.parametrize(
    ("face", "role"),
    [
        pytest.param(
            face, role, marks=pytest.mark.full if face == "command" and role in ("read", "write", "admin") else ()
        )
        for face, role in product(FACES, ROLES)
    ],
)
def test_a_member_does_exactly_what_the_table_says(
    face: str, role: str | None, filled: Path, capsys: Any, tmp_path: Path
) -> None:
    """What is refused changes nothing and tells nothing; without a role, the answer is that of a space that is not.

    Whatever changed something is the last on its copy of the filled database. Commands are tried by who may do nothing
    and who is refused, proposes and reads; by all with --full.
    """
    left = [(row, name, attempt) for row, attempts in FACES[face].items() for name, attempt in attempts.items()]
    while left:
        path = tmp_path / f"{len(left)}.db"
        shutil.copy(filled, path)
        with open_store(f"sqlite:///{path}", embeddings=None) as store:
            service = AgentMemoryStoreService(store, spaces=Spaces()).sync
            first = before = state(service)
            while left and before == first:
                row, name, attempt = left.pop()
                with case(f"{row}: {name}"):
                    before = told(service, face, (row, name, attempt), role, before, capsys, f"sqlite:///{path}")


def told(
    service: Any, face: str, cell: tuple[str, str, Any], role: str | None, before: Any, capsys: Any, url: str
) -> Any:
    """Checks a cell of the table; what stands in the space afterwards."""
    (row, name, attempt), user = cell, f"{role}-user"
    done, answer = outcome(service, face, attempt, user, "eng", capsys, url)
    after = state(service)
    assert done == EXPECTED[row, role], answer
    if done == "yes" and name in READS:
        assert SECRET in answer or face != "service"
    if done == "no":
        assert after == before
        assert SECRET not in answer
    if done == "waits":
        assert (after[:2], after[2]) == (before[:2], before[2] + 1)
    if role is None:
        nowhere = outcome(service, face, attempt, user, "nowhere", capsys, url)
        assert nowhere == (done, answer.replace("'eng'", "'nowhere'"))
    return after


def test_each_operation_of_the_service_has_a_row() -> None:
    """So that a new one is not left out: it needs an admin unless it is registered with another role."""
    tried = set[str]()

    class Seen:
        def __getattr__(self, name: str) -> Any:
            def answer(*_: object, **__: object) -> dict[str, int]:
                return {"total": 2}

            tried.add(name)
            return answer

    for attempts in SERVICE.values():
        for attempt in attempts.values():
            attempt(Seen(), ENG)
    with open_store("memory://", embeddings=None) as store:
        face = AgentMemoryStoreService(store).sync
        names = {name for name in dir(face) if not name.startswith("_") and callable(getattr(face, name))}
    others = {"get_spaces", "add_completion", "rebuild_receipt", "release_hold", "list_holds", "list_held_copies"}
    assert names - tried == others


def test_below_admin_is_only_what_is_registered_so() -> None:
    modules = [import_module(f"{operations.__name__}.{one.name}") for one in iter_modules(operations.__path__)]
    found = [one for module in (*modules, analytics, forgetting) for one in vars(module).values()]
    registered = {one for one in found if isinstance(one, MemoryOperation)}
    by_role = {
        role: {one.body.__name__ for one in registered if one.needs is role}
        for role in (SpaceRole.READ, SpaceRole.PROPOSE, SpaceRole.WRITE, None)
    }
    contexts = {"user_context", "user_context_with_timestamps", "format_context"}
    assert by_role == {
        SpaceRole.READ: {"get", "recall", "recall_by_category", "list_memories", "count", "history", *contexts},
        SpaceRole.PROPOSE: {"save"},
        SpaceRole.WRITE: {"update", "delete"},
        None: {"add_messages", "add_messages_once", "add_completion", "read_profile", "edit_profile"},
    }
    others = [one for one in registered if one.needs is SpaceRole.ADMIN]
    assert len(others) == len(registered) - sum(map(len, by_role.values())) >= 20
    assert {one.body.__name__ for one in registered if one.reviewer} == {"approve_pending", "reject_pending"}


async def _reads(scope: MemoryScope, user_id: str) -> None:
    del scope, user_id


def test_an_operation_needs_an_admin_unless_it_says_otherwise() -> None:
    assert operation("read_all")(_reads).needs is SpaceRole.ADMIN


@each([{"subject": "space"}, {"needs": SpaceRole.WRITE}, {"reviewer": "by"}])
def test_a_registration_that_does_not_fit_its_function_is_refused(options: Any) -> None:
    """So that renaming a parameter cannot change who may do what."""
    with pytest.raises(TypeError, match="lacks one of the parameters"):
        operation("read_all", **options)(_reads)
