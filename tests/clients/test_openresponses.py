"""The public compliance suite of Open Responses, run against a stack."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.clients.agents import PROGRAMS
from tests.clients.stack import MODEL, run_stack

SUITE = os.environ.get("SUITE", "")
"""A checkout of it."""

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(not SUITE or not PROGRAMS.exists(), reason="make test-openresponses fetches the suite"),
]


def test_the_suite_passes(model: Path, tmp_path: Path) -> None:
    with run_stack(tmp_path / "stack", model, thinks=True) as stack:
        done = subprocess.run(
            [
                *(str(PROGRAMS / "bun"), "run", "bin/compliance-test.ts", "--json"),
                *("--base-url", f"{stack.url}/v1", "--api-key", "none", "--model", MODEL),
            ],
            # The suite's only dependency lies beside bun.
            env={**os.environ, "NODE_PATH": str(PROGRAMS.parent), "HOME": str(tmp_path)},
            cwd=SUITE,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
    results: list[dict[str, Any]] = json.loads(done.stdout)["results"]
    failed = {result["id"]: result.get("errors") for result in results if result["status"] != "passed"}
    assert not failed, failed
    assert len(results) >= 17
