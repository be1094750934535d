"""Each service runs where only its own libraries and its own folder are installed."""

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
SERVICES: Final = {"gateway", "tokenizer", "engine", "kvstore", "models", "connect"}
LIBRARIES: Final = {
    *("torch", "transformers", "tokenizers", "huggingface_hub", "safetensors", "numpy", "jinja2", "crc32c"),
    *("rocksdict", "fastapi", "uvicorn", "orjson", "cryptography", "jsonschema_rs"),
}
# What the extra of each service brings, with what that brings in turn.
PRESENT: Final = {
    "gateway": {"fastapi", "uvicorn", "orjson"},
    "tokenizer": {"tokenizers", "jinja2", "numpy", "cryptography", "jsonschema_rs"},
    "engine": LIBRARIES - {"rocksdict", "fastapi", "uvicorn", "orjson", "cryptography", "jsonschema_rs"},
    "kvstore": {"rocksdict", "crc32c"},
    "models": {"numpy", "safetensors", "tokenizers", "huggingface_hub"},
    "connect": set[str](),
}
# What the services share runs with the libraries that all of them have.
SHARED: Final = (
    "errors",
    "extras",
    "health",
    "healthcheck",
    "identity",
    "process",
    "replicas",
    "rpc",
    "settings",
    "vocabulary",
)

PROGRAM: Final = """
import importlib, pkgutil, sys
package, *absent = sys.argv[1:]
sys.modules.update(dict.fromkeys(absent))
found = [importlib.import_module(package)]
for module in pkgutil.walk_packages(getattr(found[0], "__path__", []), package + "."):
    found.append(importlib.import_module(module.name))
print(len(found))
"""


def import_all(package: str, absent: set[str]) -> int:
    """Import a package's modules in a fresh process that has no ``absent`` ones; how many they are."""
    done = subprocess.run(
        [sys.executable, "-W", "error::ImportWarning", "-c", PROGRAM, package, *sorted(absent)],
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.parametrize("service", sorted(SERVICES))
def test_service_needs_neither_siblings_nor_their_libraries(service: str) -> None:
    siblings = {f"services.{name}" for name in SERVICES - {service}}
    assert import_all(f"services.{service}", (LIBRARIES - PRESENT[service]) | siblings) > 5


@pytest.mark.parametrize("module", SHARED)
def test_shared_module_needs_no_service(module: str) -> None:
    services = {f"services.{name}" for name in SERVICES}
    assert import_all(f"services.{module}", LIBRARIES | services) == 1


def test_absent_module_is_missed() -> None:
    """The blocking that the tests above rely on."""
    with pytest.raises(AssertionError, match="ModuleNotFoundError"):
        import_all("services.kvstore", {"rocksdict"})
