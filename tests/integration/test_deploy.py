"""The files in deploy/: what they promise, as far as a machine without containers can tell."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from server_support import BASE, served
from test_cli_serve import free_port, wait_ready
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from inference_core import AgentMemoryStoreService, open_store
from inference_core.server.telemetry import GAUGES, prometheus_name
from inference_core.settings import AgentSettings, MemorySettings, ServerSettings
from inference_core.telemetry import METRICS

DEPLOY = Path(__file__).parents[2] / "deploy"
SETTINGS = {
    f"{kind.model_config.get('env_prefix', '')}{name}".upper()
    for kind in (AgentSettings, MemorySettings, ServerSettings)
    for name in kind.model_fields
}


WORKLOADS = ("Deployment", "StatefulSet")
LINUX = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}


def compose() -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def manifests() -> list[dict[str, Any]]:
    found = [yaml.safe_load_all(path.read_text()) for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))]
    return [one for documents in found for one in documents]


def metric_names() -> set[str]:
    names = {prometheus_name(name, unit) for name, (unit, _) in GAUGES.items()}
    for name, metric in METRICS.items():
        full = prometheus_name(name, metric.unit)
        ends = ("total",) if metric.kind == "counter" else ("bucket", "sum", "count")
        names |= {f"{full}_{end}" for end in ends}
    return names


def run_tool(*command: str) -> subprocess.CompletedProcess[str]:
    """Runs a tool; skips the test where it is not installed."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_compose_opens_nothing_by_itself():
    """No default key or password, ports of this machine alone, secrets as files, nothing writable, no capabilities."""
    found = compose()
    for name, service in found["services"].items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
        for variable, value in service["environment"].items():
            assert not re.search(r"PASSWORD|KEY|TOKEN|SECRET", variable) or variable.endswith("_FILE"), variable
            assert "://memory:" not in str(value)
            own = variable.removesuffix("_FILE")
            assert not own.startswith("AGENT_") or own in SETTINGS, variable
    server = found["services"]["server"]["environment"]
    assert server["AGENT_SERVER_USER"].startswith("${AGENT_SERVER_USER:?")
    assert server["AGENT_SERVER_KEY_FILE"] == "/run/secrets/server_key"
    assert all("file" in secret for secret in found["secrets"].values())
    assert not (DEPLOY / "secrets").exists()


def test_containers_have_no_rights():
    for one in manifests():
        if one["kind"] not in WORKLOADS:
            continue
        pod = one["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsUser"] == 10001
        assert not pod["automountServiceAccountToken"]
        (container,) = pod["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert not container["securityContext"]["allowPrivilegeEscalation"]
        names = {variable["name"].removesuffix("_FILE") for variable in container["env"]}
        assert names <= SETTINGS
    (kustomization,) = [one for one in manifests() if one["kind"] == "Kustomization"]
    assert all("literals" not in secret for secret in kustomization["secretGenerator"])


def test_regression_a_server_in_a_cluster_keeps_its_ledger():
    """Servers wrote down what they had erased in a folder that went with the pod: no restore could erase it again."""
    (server,) = [one["spec"] for one in manifests() if one["kind"] == "StatefulSet"]
    (container,) = server["template"]["spec"]["containers"]
    (ledger,) = [one["value"] for one in container["env"] if one["name"] == "AGENT_SERVER_LEDGER"]
    claimed = {one["metadata"]["name"] for one in server["volumeClaimTemplates"]}
    kept = [one["mountPath"] for one in container["volumeMounts"] if one["name"] in claimed]
    assert any(Path(ledger).is_relative_to(one) for one in kept)
    assert compose()["services"]["server"]["volumes"] == ["memory:/data"]
    assert "WORKDIR /data" in (DEPLOY / "Dockerfile").read_text()


def test_manifests_are_built_with_a_key_alone(tmp_path: Path):
    folder = shutil.copytree(DEPLOY / "kubernetes", tmp_path / "kubernetes")
    assert run_tool("kubectl", "kustomize", str(folder)).returncode != 0
    (folder / "secrets").mkdir()
    for name, value in (("store_url", "postgresql://x"), ("server_key", "k"), ("server_user", "AGENT_SERVER_USER=ada")):
        (folder / "secrets" / name).write_text(value)
    built = run_tool("kubectl", "kustomize", str(folder))
    assert built.returncode == 0, built.stderr
    assert [built.stdout.count(f"kind: {kind}\n") for kind in WORKLOADS] == [1, 1]


async def test_regression_behind_a_proxy_with_tls_cookies_are_secure():
    """With compose the proxy does not come from 127.0.0.1, so the server took what it handed on for plain HTTP."""
    setting = compose()["services"]["server"]["environment"]["FORWARDED_ALLOW_IPS"]
    with open_store("memory://", embeddings=None) as store:
        server = served(AgentMemoryStoreService(store))
        behind: Any = ProxyHeadersMiddleware  # its types of ASGI are not those of starlette
        app = behind(server.app, setting.partition(":-")[2].rstrip("}"))
        for address, is_secure in (("172.18.0.1", True), ("203.0.113.9", False)):
            transport = httpx.ASGITransport(app, client=(address, 1))
            async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
                headers, form = {"X-Forwarded-Proto": "https"}, {"key": server.key("ada")}
                answer = await client.post("/ui/login", data=form, headers=headers)
                assert ("; secure" in answer.headers["set-cookie"].lower()) is is_secure


def test_the_dashboard_and_the_alerts_ask_for_metrics_that_there_are():
    panels = json.loads((DEPLOY / "grafana.json").read_text())["panels"]
    rules = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"][0]["rules"]
    asked = [target["expr"] for panel in panels for target in panel["targets"]] + [rule["expr"] for rule in rules]
    names = {name for one in asked for name in re.findall(r"\b(?:inference_core|gen_ai|http_server)_[a-z_]+\b", one)}
    labels = {label.replace(".", "_") for metric in METRICS.values() for label in metric.labels}
    assert names - labels <= metric_names()
    measured = {one for one in metric_names() if one.endswith("_total")}
    assert names >= measured | {prometheus_name(name, unit) for name, (unit, _) in GAUGES.items()}, "all is shown"


def test_the_image_installs_what_the_tests_ran_with():
    """The same versions, all with hashes, and all that its extras need: without httptools, no server started in it."""
    pins = [
        {line.split(" ")[0] for line in (DEPLOY / "..").joinpath(path).read_text().splitlines() if line[:1].isalpha()}
        for path in ("deploy/requirements.lock", "requirements.lock")
    ]
    assert pins[0] <= pins[1]
    project = tomllib.loads((DEPLOY / ".." / "pyproject.toml").read_text())["project"]
    lock = (DEPLOY / ".." / "scripts" / "lock").read_text()
    extras = re.findall(r"--extra ([\w-]+)", lock.rpartition("uv pip compile")[2])
    assert {"cli", "server", "postgres"} <= set(extras)
    needed = [*project["dependencies"], *(one for extra in extras for one in project["optional-dependencies"][extra])]
    installed = [one for one in map(Requirement, needed) if not one.marker or one.marker.evaluate(LINUX)]
    assert {canonicalize_name(one.name) for one in installed} <= {one.split("==")[0] for one in pins[0]}
    recipe = (DEPLOY / "Dockerfile").read_text()
    assert "USER 10001:10001" in recipe
    assert "HEALTHCHECK" in recipe
    installs = [line for line in recipe.splitlines() if "pip install" in line]
    assert all("--require-hashes" in line or "/wheels/" in line for line in installs)


def test_the_tools_find_no_fault(tmp_path: Path):
    linted = run_tool("hadolint", str(DEPLOY / "Dockerfile"))
    assert (linted.returncode, linted.stdout) == (0, "")
    unit = (DEPLOY / "inference-core.service").read_text()
    command = Path(sys.executable).with_name("inference-core")
    path = tmp_path / "inference-core.service"
    path.write_text(unit.replace("/opt/inference-core/bin/inference-core", str(command)))
    verified = run_tool("systemd-analyze", "verify", str(path))
    assert (verified.returncode, verified.stderr) == (0, "")
    rated = run_tool("systemd-analyze", "security", "--offline=true", str(path)).stdout
    exposure = re.search(r"exposure level for \S+ ([\d.]+)", rated)
    assert exposure is not None
    assert float(exposure[1]) <= 2.0


@pytest.mark.untraced
@pytest.mark.full
def test_the_entrypoint_reads_the_key_and_a_killed_server_has_lost_nothing(tmp_path: Path):
    """Where bwrap is installed: as user 10001, with nothing writable but the folder of the data."""
    port, key, data = free_port(), "k" * 40, tmp_path / "data"
    data.mkdir()
    (tmp_path / "key").write_text(f"{key}\n")
    confined = list[str]()
    if shutil.which("bwrap"):
        confined += ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--bind", str(data), str(data)]
        confined += ["--unshare-user", "--uid", "10001", "--gid", "10001", "--cap-drop", "ALL", "--die-with-parent"]
    environment = os.environ | {
        "AGENT_MEMORY_STORE_URL": f"sqlite:///{data}/memory.db",
        "AGENT_MEMORY_EMBEDDINGS": "none",
        "AGENT_SERVER_HOST": "0.0.0.0",
        "AGENT_SERVER_USER": "ada",
        "AGENT_SERVER_KEY_FILE": str(tmp_path / "key"),
        "AGENT_SERVER_LEDGER": f"{data}/erasures.jsonl",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    command = [*confined, str(DEPLOY / "entrypoint"), "serve", "--port", str(port)]
    headers = {"Authorization": f"Bearer {key}"}
    for saved in ([], ["Lives in Lisbon"]):
        server = subprocess.Popen(command, env=environment, cwd=data)
        try:
            wait_ready(port)
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers) as client:
                assert [one["content"] for one in client.get("/v1/memories").json()["memories"]] == saved
                assert client.post("/v1/memories", json={"content": "Lives in Lisbon"}).is_success
                client.headers.pop("Authorization")
                assert client.get("/v1/memories").status_code == 401
        finally:
            server.send_signal(signal.SIGKILL)
            server.wait()
