"""What is released: the same bytes from any folder, licences that are allowed, and a wheel that needs nothing else."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import pytest
from chat_server import chat_server

from inference_core import __version__
from inference_core.testing import call_tool
from scripts import build_models, sbom

ROOT = Path(__file__).parents[2]
BUILT = ("pyproject.toml", "README.md", "LICENSE", "scripts/package_page.py")
NOT_IN_SOURCES = {".ci/run"}
"""How this repository's own tests are started by its host."""
ASSETS = {".py", ".toml", ".npz", ".typed", ".json", ".css", ".js", ".html", ".svg", ".LICENSE"}


def test_every_package_for_users_has_a_licence_that_is_allowed():
    """A dependency of a dependency may change its licence with any version."""
    found = sbom.installed()
    assert {"inference-core-memory", "langgraph", "numpy", "onnxruntime", "psycopg"} <= found.keys()
    assert not {"ruff", "hypothesis"} & found.keys()
    assert [(name, licence) for name, licence in found.items() if not sbom.ALLOWED.search(licence)] == []


def test_the_bill_names_the_version_the_models_and_every_licence():
    """The tool finds neither a version that is dynamic, nor wheels that are not installed, nor some licences."""
    parts = [("PyYAML", [{"license": {"id": "MIT"}}]), ("sqlite-vec", []), ("ruff", [])]
    found = {
        "metadata": {"component": {"bom-ref": "root", "name": sbom.NAME}},
        "components": [{"bom-ref": f"{name}==1", "name": name, "licenses": licences} for name, licences in parts],
        "dependencies": [{"ref": "root", "dependsOn": ["PyYAML==1"]}]
        + [{"ref": f"{name}==1", "dependsOn": ["ruff==1"]} for name, _ in parts],
    }
    bill = sbom.bill_of(found, {"pyyaml": "another", "sqlite-vec": "MIT License, Apache License, Version 2.0"})
    assert bill == sbom.bill_of(found, {"pyyaml": "another", "sqlite-vec": "MIT License, Apache License, Version 2.0"})
    assert bill["metadata"]["component"]["version"] == __version__
    models = {f"inference-core-models-{name}": model for name, model in build_models.MODELS.items()}
    listed = {one["name"]: one for one in bill["components"]}
    assert listed.keys() == {"PyYAML", "sqlite-vec", *models}
    licences = {name: next(iter(one["licenses"]))["license"] for name, one in listed.items()}
    assert licences["PyYAML"] == {"id": "MIT"}
    assert licences["sqlite-vec"]["name"] == "MIT License, Apache License, Version 2.0"
    for name, model in models.items():
        assert (licences[name]["id"], listed[name]["version"]) == (model.licence, build_models.VERSION)
    refs = {one["ref"]: one["dependsOn"] for one in bill["dependencies"]}
    assert refs.keys() == {"root", *(one["bom-ref"] for one in listed.values())}
    assert refs["root"] == ["PyYAML==1", *(f"{name}=={build_models.VERSION}" for name in sorted(models))]
    assert refs["PyYAML==1"] == []


def test_the_source_distribution_holds_every_file_of_the_repository(tmp_path: Path):
    """Its scripts and tests read locks, settings and pages: without them, it cannot build or test itself."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is not a checkout")
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    tracked = {name for name in listing.split("\0") if (ROOT / name).is_file()}
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, env={**os.environ, "SOURCE_DATE_EPOCH": "0"})
    (path,) = tmp_path.iterdir()
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert tracked - names == NOT_IN_SOURCES


def built(folder: Path, when: float) -> Path:
    """The wheel of a copy of the repository, whose files are all of that time."""
    shutil.copytree(ROOT / "inference_core", folder / "inference_core", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "scripts").mkdir()
    for name in BUILT:
        shutil.copy(ROOT / name, folder / name)
    for path in [folder, *folder.rglob("*")]:
        os.utime(path, (when, when))
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, env={**os.environ, "SOURCE_DATE_EPOCH": "0"})
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


@pytest.mark.parametrize("url", ["https://example.com/ada/inference_core/", ""])
def test_the_packages_page_links_to_the_files_of_its_version(url: str):
    """An index shows README alone: there, relative links and pictures lead nowhere."""
    command = [sys.executable, "-m", "hatchling", "metadata"]
    environment = {**os.environ, "PROJECT_URL": url}
    done = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True)
    page = json.loads(done.stdout)
    shown = page["readme"]["text"]
    text = (ROOT / "README.md").read_text("utf-8")
    relative = re.findall(r"(!?)\[[^]]*\]\((?!https://)([^)]+)\)", text)
    assert len(relative) > 30
    if not url:
        assert (shown, "urls" in page) == (text, False)
        return
    tag = f"v{__version__}"
    for picture, target in relative:
        address = f"{url}{'raw' if picture else 'blob'}/{tag}/{target}"
        assert f"]({address})" in shown
        assert f"]({target})" not in shown
    assert page["urls"]["Source"] == url.rstrip("/")


@pytest.mark.full
def test_two_builds_of_the_wheel_are_the_same_bytes_and_run(tmp_path: Path):
    """Whoever builds from the sources can compare what they get with what was published."""
    one, two = built(tmp_path / "one", 1_000_000_000), built(tmp_path / "elsewhere" / "two", 1_700_000_000)
    assert one.name == two.name
    assert one.read_bytes() == two.read_bytes()
    with zipfile.ZipFile(one) as archive:
        names = archive.namelist()
    assert {Path(name).suffix for name in names if ".dist-info/" not in name} <= ASSETS
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any(name.startswith(("tests", "benchmarks")) for name in names)
    missing = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "inference_core").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    } - set(names)
    assert missing == set()
    with zipfile.ZipFile(one) as archive:
        archive.extractall(tmp_path / "site")
    # Another folder on the path comes before the environment's own copy, as an installation would.
    program = (
        "import inference_core, sys; from inference_core.cli import main; url = ['--url', 'sqlite:///m.db']; "
        "assert 'site' in inference_core.__file__; "
        "saved = main(['save', 'Lives in Lisbon', '--user', 'ada', *url]); "
        "sys.exit(saved or main(['recall', 'Lisbon', '--user', 'ada', *url]))"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "AGENT_MEMORY_EMBEDDINGS": "none"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, "Lives in Lisbon" in done.stdout) == (0, True), done.stderr


class Installation:
    """An environment with wheels alone: what the image's lock names, by their hashes, pytest, and ours."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.programs = folder, folder / "environment" / "bin"
        self.variables = {"PATH": f"{self.programs}:/usr/bin:/bin", "HOME": str(folder), "LANGSMITH_TRACING": "false"}
        subprocess.run([sys.executable, "-m", "venv", folder / "environment"], check=True)
        lock = (ROOT / "requirements.lock").read_text("utf-8")
        tested = re.findall(
            r"^(?:pytest|iniconfig|pluggy|pygments|packaging)==.*?(?=^\w|\Z)", lock, re.MULTILINE | re.DOTALL
        )
        (folder / "tests.lock").write_text("".join(tested))
        wheel = built(folder / "source", 1_700_000_000)
        for given in (["-r", str(ROOT / "deploy" / "requirements.lock")], ["-r", "tests.lock"]):
            self.install("--require-hashes", *given)
        self.install("--no-index", str(wheel))
        self.run("pip", "check")

    def install(self, *given: str) -> None:
        command = [str(self.programs / "pip"), "install", "--quiet", "--no-deps", "--only-binary", ":all:", *given]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
        if done.returncode and "No matching distribution" in done.stderr:
            pytest.skip("no package index is reachable")
        assert done.returncode == 0, done.stderr

    def run(self, program: str, *given: str, **variables: str) -> str:
        """What the program prints; Python's isolation is that it gets none of this process's variables."""
        command = [str(self.programs / program), *given]
        environment = self.variables | variables
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self, name: str, *given: str) -> subprocess.Popen[str]:
        with (self.folder / f"{name}.log").open("w") as log:
            command = [str(self.programs / "inference-core"), name, *given]
            return subprocess.Popen(command, cwd=self.folder, env=self.variables, stdout=log, stderr=log, text=True)

    def said(self, name: str, wanted: str) -> str:
        """What a program has printed, once ``wanted`` is in it."""
        end = time.monotonic() + 60
        while wanted not in (text := (self.folder / f"{name}.log").read_text()):
            assert time.monotonic() < end, text
            time.sleep(0.1)
        return text


CLIENT = """
from inference_core.client import MemoryClient
with MemoryClient("http://127.0.0.1:8769") as memory:
    memory.sync.save_memory("ada@example.com", "Has a kite", "facts")
    print([hit.content for hit in memory.sync.recall_memories("ada@example.com", "Who wants to hear of Lisbon?")])
"""
PAGES = """
import httpx, sys
with httpx.Client() as browser:
    browser.get(sys.argv[1])
    print(browser.get(sys.argv[1].partition("/login")[0] + "/u/bob/timeline").text)
"""
CONFORMANCE = """
import pytest
from inference_core import open_store
from inference_core.testing import StoreConformance

class TestOurs(StoreConformance):
    strict = True

    @pytest.fixture
    def store(self, embeddings, tmp_path):
        with open_store(f"sqlite:///{tmp_path}/m.db", embeddings=embeddings) as store:
            store.wait_ready(30)
            yield store
"""


@pytest.mark.full
def test_the_wheel_alone_runs_the_example_the_commands_and_its_tests(tmp_path: Path):
    """A file or a package that only the repository has is missing nowhere but at the user's."""
    place = Installation(tmp_path)
    readme = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    saves = call_tool("save_memory_store", content="Wants to hear of Lisbon", memory_type="preferences")
    with chat_server(saves, "Nice to meet you, Ada!", "I know") as (url, requests):
        openai = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none"}
        printed = ""
        for code in readme[:2]:
            patient = code.replace("MemoryMiddleware()", "MemoryMiddleware(recall_timeout=60)")
            printed = place.run("python", "-W", "error", "-c", patient, **openai)
    assert printed.startswith("I know\n")
    assert "to hear of Lisbon" in str(requests[-1]["messages"])
    (tmp_path / "chat.jsonl").write_text('{"role": "user", "content": "I live in Porto now."}\n')
    place.run("inference-core", "ingest", "chat.jsonl", "--queue", "--user", "bob")
    place.run("inference-core", "worker", "--once")
    assert "Porto" in place.run("inference-core", "list", "--user", "bob")
    server = place.start("serve", "--user", "ada@example.com", "--port", "8769")
    inspector = place.start("inspect")
    try:
        place.said("serve", "Uvicorn running")
        assert "to hear of Lisbon" in place.run("python", "-c", CLIENT)
        (link,) = re.findall(r"http://\S+once=\S+", place.said("inspect", "once="))
        assert "Porto" in place.run("python", "-c", PAGES, link)
    finally:
        for process in (server, inspector):
            process.terminate()
            process.wait()
    (tmp_path / "test_ours.py").write_text(CONFORMANCE)
    assert " failed" not in place.run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_ours.py")
