"""The script that checks a GPU runs, and passes, where there is none."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

_ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(torch.cuda.is_available(), reason="its CPU part alone is tried here")
def test_the_cpu_part_passes_where_there_is_no_device() -> None:
    command = [sys.executable, "-W", "error", "-m", "bench.device", "--kinds", "qwen3"]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    first, *_, last = done.stdout.splitlines()
    assert first.startswith("no CUDA device")
    found = json.loads(last)
    assert (found["checks"], found["failures"]) == (22, [])
    assert found["rates"]["device"] == "cpu"
    assert all(rate > 0 for name, rate in found["rates"].items() if name.endswith("_per_s"))
