"""compose.yaml and deploy/Dockerfile against each other and against the services' settings; needs no engine."""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from services.engine.config import EngineConfig
from services.gateway.config import GatewaySettings
from services.kvstore.config import Config as KvstoreConfig
from services.tokenizer.config import TokenizerSettings

ROOT: Final = Path(__file__).parents[2]
DOCKERFILE: Final = (ROOT / "deploy/Dockerfile").read_text()
COMPOSE: Final[dict[str, Any]] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SETTINGS_BY_SERVICE: Final[dict[str, type]] = {
    "gateway": GatewaySettings,
    "tokenizer": TokenizerSettings,
    "engine": EngineConfig,
    "kvstore": KvstoreConfig,
}


def test_docker_compose_accepts_the_file() -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], capture_output=True).returncode != 0:
        pytest.skip("docker compose is not installed")
    result = subprocess.run([docker, "compose", "config", "-q"], cwd=ROOT, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


def test_only_the_gateway_is_published_and_only_on_loopback() -> None:
    published = {name: service["ports"] for name, service in COMPOSE["services"].items() if "ports" in service}
    assert published == {
        "gateway": ["127.0.0.1:${FENCEPOST_PORT:-8000}:8000", "127.0.0.1:${FENCEPOST_OPERATOR_PORT:-8001}:8001"]
    }


def test_each_container_is_built_from_its_own_target() -> None:
    targets = {name: service["build"]["target"] for name, service in COMPOSE["services"].items()}
    assert targets == {name: name for name in (*SETTINGS_BY_SERVICE, "model")}
    assert set(targets) <= set(re.findall(r"^FROM base AS (\w+)$", DOCKERFILE, re.MULTILINE))


def test_every_build_argument_is_one_that_the_dockerfile_or_docker_knows() -> None:
    known = {*re.findall(r"^ARG (\w+)", DOCKERFILE, re.MULTILINE), "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"}
    assert {argument for service in COMPOSE["services"].values() for argument in service["build"]["args"]} <= known


@pytest.mark.parametrize("name", SETTINGS_BY_SERVICE)
def test_a_service_is_given_only_settings_that_it_has(name: str) -> None:
    prefix = f"FENCEPOST_{name.upper()}_"
    known = {prefix + field.name.upper() for field in dataclasses.fields(SETTINGS_BY_SERVICE[name])}
    passed = {entry.partition("=")[0] for entry in COMPOSE["services"][name]["environment"]}
    in_image = set(re.findall(rf"\b{prefix}[A-Z_]+(?==)", DOCKERFILE))
    assert passed | in_image <= known


@pytest.mark.parametrize("name", SETTINGS_BY_SERVICE)
def test_a_service_is_checked_restarted_and_confined(name: str) -> None:
    service = COMPOSE["services"][name]
    assert service["healthcheck"]["test"][:4] == ["CMD", "python", "-m", "services.healthcheck"]
    assert service["restart"] == "unless-stopped"
    assert service["init"] is True
    assert service["read_only"] is True


def test_images_do_not_run_as_root() -> None:
    for stage in DOCKERFILE.split("\nFROM ")[1:]:
        if "ENTRYPOINT" in stage:
            assert "\nUSER fencepost\n" in stage


def test_no_build_needs_a_registry_for_its_syntax() -> None:
    assert "# syntax" not in DOCKERFILE
