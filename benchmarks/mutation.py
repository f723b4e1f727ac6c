"""Mutation testing of the domain, of ranking and of what reaches the prompt: how many faults the tests notice.

Cosmic Ray's operators change one expression at a time in a copy of the repository. Tests run until one fails: first
those named after the changed module, of whatever kind, then the unit tests of its package and the property tests that
import it. ``--n`` mutants are drawn with ``--seed``, as many of each package, each of another place. What only other
tests would notice counts as survived, and so does what changes no result, so the score is a lower bound.

``--short`` compares the short run with ``--full``, also for services and stores, and publishes nothing: what survives
the cases of the short run meets all cases, and whatever these notice is a case that the short run needs.
"""

from __future__ import annotations

import argparse
import ast
import multiprocessing
import os
import random
import resource
import shutil
import subprocess
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module, invalidate_caches
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import Phase, settings
from report import Row, publish
from timing import scratch, watched

ROOT: Final = Path(__file__).parent.parent
PACKAGES: Final = ("memory", "retrieval", "context", "slots")
CONTRACTS: Final = {
    "services": ("test_service.py", "test_memory_verbs.py", "test_review.py", "test_pages.py", "test_deleted.py"),
    "stores": ("test_memory_store.py", "test_backend_contract.py", "test_cold_recall.py", "test_store_conformance.py"),
}
"""Packages that are tested through more than their units: the contracts that say most of each."""
_NO_TESTS: Final = 5
BAR: Final = 0.85
MUTANTS: Final = 120
SEED: Final = 17
SECONDS: Final = 60
"""Of a processor, for the tests of a mutant: some never end."""
MEMORY: Final = 8 * 1024**3
"""For the tests of a mutant: some never stop adding to a list."""
PATIENCE_S: Final = 600
"""For tests that wait for something that does not come."""
PROCESSES: Final = multiprocessing.get_context("forkserver")
"""Processes for tests, which begin with what the package imports of others."""
PROCESSES.set_forkserver_preload(
    ["pytest", "hypothesis", "langchain.agents", "langgraph.store.sqlite.aio", "psycopg_pool"]
)
REQUIREMENTS: Final = Path(__file__).with_name("mutation.lock")
WITHOUT_SERVERS: Final = "not postgres and not redis"
"""What is mutated is the same on every database, and a server would outlive tests that are stopped."""
_ANNOTATED: Final = (ast.arg, ast.AnnAssign)
_CACHES: Final = ("cache", "lru_cache")
Place = tuple[tuple[int, int], tuple[int, int]]
"""Line and column of the first character, and of the one after the last."""


@dataclass(frozen=True)
class Mutant:
    """A change of a module: ``operator`` at its ``occurrence``."""

    module: str
    operator: str
    occurrence: int
    place: Place


def without_effect(source: str) -> list[Place]:
    """Where no change has a result: types, which are not evaluated, options of dataclasses, and caches."""
    places: list[Place] = []
    for node in ast.walk(ast.parse(source)):
        annotation = node.annotation if isinstance(node, _ANNOTATED) else getattr(node, "returns", None)
        if isinstance(annotation, ast.expr):
            places.append(place_of(annotation))
        for decorator in getattr(node, "decorator_list", ()):
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            name = called.id if isinstance(called, ast.Name) else ""
            if name == "dataclass":
                places.append(place_of(decorator))
            elif name in _CACHES:  # the mutant without it takes the whole line
                (first, _), (last, _) = place_of(decorator)
                places.append(((first, 0), (last + 1, 0)))
    return places


def place_of(node: ast.expr) -> Place:
    """Where an expression is written."""
    return (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)


def described(one: Mutant) -> str:
    """Where it is, and what is changed."""
    line, column = one.place[0]
    return f"{one.module}:{line}:{column} {one.operator} {one.occurrence}"


def operators() -> Any:
    """Cosmic Ray's operators by their names."""
    return import_module("cosmic_ray.operators.provider").OperatorProvider()


def mutants(module: str) -> Iterator[Mutant]:
    """All changes of a module that its tests might notice."""
    trees: Any = import_module("cosmic_ray.ast")
    source = (ROOT / module).read_text(encoding="utf-8")
    ignored = without_effect(source)
    nodes = list(trees.ast_nodes(trees.get_ast(source)))
    for name in operators():
        if operators()[name].arguments():  # asks for names of variables
            continue
        operator = operators()[name]()
        places = [place for node in nodes for place in operator.mutation_positions(node)]
        for occurrence, (start, end) in enumerate(places):
            if not any(first <= start and end <= last for first, last in ignored):
                yield Mutant(module, name, occurrence, (start, end))


def chosen(packages: Sequence[str], count: int, seed: int) -> dict[str, list[Mutant]]:
    """So many mutants of each package, always the same, each of another place."""
    found: dict[str, list[Mutant]] = {}
    for package in packages:
        by_place: defaultdict[tuple[str, Place], list[Mutant]] = defaultdict(list)
        for path in sorted((ROOT / "inference_core" / package).rglob("*.py")):
            for one in mutants(path.relative_to(ROOT).as_posix()):
                by_place[one.module, one.place].append(one)
        chance = random.Random(seed)
        places = chance.sample(sorted(by_place), min(count, len(by_place)))
        changes = [chance.sample(by_place[place], len(by_place[place])) for place in places]
        drawn = [next(filter(compiles, of_one_place), None) for of_one_place in changes]
        found[package] = [one for one in drawn if one]
    return found


def mutated(one: Mutant) -> str:
    """The source of the module with the change."""
    operator = operators()[one.operator]()
    left = one.occurrence

    def walked(node: Any) -> Any:
        nonlocal left
        for index in range(len(list(operator.mutation_positions(node)))):
            if left == 0:
                node = operator.mutate(node, index)
            left -= 1
        if node is not None and hasattr(node, "children"):
            node.children = [child for child in map(walked, node.children) if child is not None]
        return node

    tree: Any = import_module("cosmic_ray.ast").get_ast((ROOT / one.module).read_text(encoding="utf-8"))
    return walked(tree).get_code()


def compiles(one: Mutant) -> bool:
    """Whether the change is Python that it takes a test to notice: not even the compiler warns of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            compile(mutated(one), one.module, "exec", dont_inherit=True)
        except SyntaxError:  # warnings of the compiler, too
            return False
    return True


def noticed(one: Mutant, folder: Path, *options: str) -> bool:
    """Whether a test fails on the copy in ``folder``, or does not end. ``options``: further ones of pytest."""
    path = Path(one.module)
    unit, properties = folder / "tests/unit", folder / "tests/property"
    own = unit / path.parts[1]
    name = one.module.removesuffix(".py").replace("/", ".")
    named = (folder / "tests").rglob(f"test_{path.stem}*.py")
    nearest = [path for path in named if unit not in path.parents or own in path.parents]
    nearest.sort(key=lambda path: (own not in path.parents, path))  # those that take longer come last
    rest = [own, *(path for path in properties.glob("test_*.py") if name in path.read_text("utf-8"))]
    contracts = [[folder / "tests/contract" / contract] for contract in CONTRACTS.get(path.parts[1], ())]
    return any(fails(folder, tests, *options) for tests in (nearest, rest, *contracts) if tests)


def run_tests(folder: Path, tests: Sequence[Path], *further: str) -> None:
    """Runs ``tests`` on the copy in ``folder`` and ends the process with pytest's code."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = str(folder)
    sys.pycache_prefix = str(folder / ".pycache")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.dup2(nowhere, sys.stderr.fileno())
    # What a failure's simplest case is may take minutes to find.
    settings.register_profile("first failure", phases=[Phase.explicit, Phase.reuse, Phase.generate])
    settings.load_profile("first failure")
    # Modules that are imported already cannot be rewritten; those are not ours.
    options = ["-x", "-k", WITHOUT_SERVERS, "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    os._exit(pytest.main([*options, *further, *map(str, tests)]))


def fails(folder: Path, tests: Sequence[Path], *options: str) -> bool:
    """Whether pytest finds a failure among ``tests`` on the copy in ``folder``, or is ended by a limit."""
    running = PROCESSES.Process(target=run_tests, args=(folder, tests, *options))
    running.start()
    running.join(PATIENCE_S)
    running.kill()
    running.join()
    return running.exitcode not in (0, _NO_TESTS)


def copy_to(folder: Path) -> None:
    """Copies the repository, without what git ignores."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(lambda name: (ROOT / name).is_file(), listed.splitlines()):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)


def survivors(all_mutants: Sequence[Mutant], folder: Path, *options: str) -> list[Mutant]:
    """Those that no test notices."""
    found: list[Mutant] = []
    for number, one in enumerate(watched(all_mutants, "mutants")):
        path = folder / one.module
        original = path.read_text(encoding="utf-8")
        path.write_text(mutated(one), encoding="utf-8")
        os.utime(path, (number, number))  # compiled modules are known by the second and the size of their source
        if not noticed(one, folder, *options):
            found.append(one)
            print("survived:", described(one), file=sys.stderr, flush=True)
        path.write_text(original, encoding="utf-8")
    return found


def install() -> None:
    """Installs Cosmic Ray's operators, once."""
    if find_spec("cosmic_ray") is None:  # its command needs a dozen packages more, its operators none
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
        subprocess.run([*command, "-r", str(REQUIREMENTS)], check=True)
        invalidate_caches()


def missed(count: int, seed: int = SEED) -> list[Mutant]:
    """Those that the cases of the short run leave alone and all cases notice."""
    packages = ("context", *CONTRACTS)
    with scratch() as folder:
        copy_to(folder)
        found: list[Mutant] = []
        for drawn in chosen(packages, count // len(packages), seed).values():
            left = survivors(drawn, folder)
            still = survivors(left, folder, "--full")
            found += [one for one in left if one not in still]
    return found


def measured(count: int, seed: int = SEED) -> tuple[list[Row], Mapping[str, Any]]:
    """The share of mutants that the tests notice, by package, and which ones survived."""
    with scratch() as folder:
        copy_to(folder)
        if any(fails(folder, [folder / "tests/unit" / package]) for package in PACKAGES):
            sys.exit("Tests fail already without a change")
        rows: list[Row] = []
        left: list[Mutant] = []
        for package, drawn in chosen(PACKAGES, count // len(PACKAGES), seed).items():
            survived = survivors(drawn, folder)
            score = 1 - len(survived) / len(drawn)
            result = f"{score:.0%} of {len(drawn)}"
            rows.append((f"mutants of {package} that a test notices", result, f"≥ {BAR:.0%}", score >= BAR))
            left += survived
    return rows, {"seed": seed, "survivors": [described(one) for one in left]}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="sh scripts/bench mutation", description=__doc__)
    parser.add_argument("--n", type=int, default=MUTANTS, help="mutants in all (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=SEED, help="of what is drawn (default: %(default)s)")
    parser.add_argument("--short", action="store_true", help="which mutants the short run misses, and all cases do not")
    given = parser.parse_args()
    install()
    if given.short:
        lost = missed(given.n, given.seed)
        sys.exit("\n".join(map(described, lost)) or 0)
    table, facts = measured(given.n, given.seed)
    sys.exit(not publish("mutation", table, facts))
