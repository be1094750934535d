"""Hub snapshots, against a small hub on loopback: what is asked for, and what errors say."""

import json
import shutil
from collections.abc import Iterator
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from services.models.convert import convert_gguf
from services.models.directory import inspect_directory
from services.models.errors import ModelDownloadError, ModelNameError
from services.models.hub import fetch_snapshot
from services.models.progress import silent
from tests.unit.models.gguf_writer import write_tiny_llama

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY = "org/tiny"


class Hub(ThreadingHTTPServer):
    """Serves one repository from a folder, and remembers which files were asked for."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), HubHandler)
        self.folder = folder
        self.num_requests = 0
        self.served: set[str] = set()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class HubHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub = self.server
        assert isinstance(hub, Hub)
        hub.num_requests += 1
        path = self.path.partition("?")[0]
        files = {str(file.relative_to(hub.folder)): file for file in hub.folder.rglob("*") if file.is_file()}
        resolve = f"/{REPOSITORY}/resolve/{COMMIT}/"
        if path in (f"/api/models/{REPOSITORY}", f"/api/models/{REPOSITORY}/revision/main"):
            self.answer(200, json.dumps({"id": REPOSITORY, "sha": COMMIT}).encode())
        elif path == f"/api/models/{REPOSITORY}/tree/{COMMIT}":
            entries = [
                {"type": "file", "path": name, "size": file.stat().st_size, "oid": sha1(name.encode()).hexdigest()}
                for name, file in files.items()
            ]
            self.answer(200, json.dumps(entries).encode())
        elif path.startswith(resolve) and path.removeprefix(resolve) in files:
            name = path.removeprefix(resolve)
            hub.served.add(name)
            self.answer(200, files[name].read_bytes(), etag=sha1(name.encode()).hexdigest())
        elif path.startswith("/api/models/org/gated"):
            self.answer(403, b"{}", error="GatedRepo")
        elif path.startswith("/api/models/org/broken"):
            self.answer(500, b"{}")
        else:
            self.answer(404, b"{}", error="RepoNotFound")

    def answer(self, status: int, body: bytes, etag: str | None = None, error: str | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Repo-Commit", COMMIT)
        if etag is not None:
            self.send_header("ETag", f'"{etag}"')
        if error is not None:
            self.send_header("X-Error-Code", error)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        del format, args


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    folder = tmp_path / "repository"
    folder.mkdir()
    convert_gguf(write_tiny_llama(tmp_path / "tiny.gguf"), "0" * 64, folder, silent)
    for name in ("pytorch_model.bin", "modeling_tiny.py", "consolidated.safetensors", "onnx/config.json"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"never wanted")
    server = Hub(folder)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_snapshot_holds_weights_and_configuration_but_no_code(hub: Hub, tmp_path: Path) -> None:
    path = fetch_snapshot(REPOSITORY, tmp_path / "cache", silent, hub.endpoint)
    assert inspect_directory(path).model_type == "llama"
    assert hub.served == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    }


def test_complete_snapshot_needs_no_hub(hub: Hub, tmp_path: Path) -> None:
    first = fetch_snapshot(REPOSITORY, tmp_path / "cache", silent, hub.endpoint)
    num_requests = hub.num_requests
    assert fetch_snapshot(REPOSITORY, tmp_path / "cache", silent, hub.endpoint) == first
    assert hub.num_requests == num_requests


def test_incomplete_snapshot_is_completed(hub: Hub, tmp_path: Path) -> None:
    first = fetch_snapshot(REPOSITORY, tmp_path / "cache", silent, hub.endpoint)
    (first / "tokenizer.json").resolve().unlink()
    (first / "tokenizer.json").unlink()
    inspect_directory(fetch_snapshot(REPOSITORY, tmp_path / "cache", silent, hub.endpoint))


def test_failures_are_one_line_each(hub: Hub, tmp_path: Path) -> None:
    for repository, kind, problem in (
        ("org/absent", ModelNameError, "no public hub repository org/absent"),
        ("org/gated", ModelDownloadError, "access is restricted"),
        ("org/broken", ModelDownloadError, "cannot fetch org/broken"),
    ):
        with pytest.raises(kind, match=problem) as caught:
            fetch_snapshot(repository, tmp_path / "cache", silent, hub.endpoint)
        assert "\n" not in str(caught.value)


def test_unreachable_hub_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ModelDownloadError, match=r"cannot fetch org/tiny: .*check the network") as caught:
        fetch_snapshot(REPOSITORY, tmp_path / "cache", silent, "http://127.0.0.1:9")
    assert "\n" not in str(caught.value)


def test_absent_cache_is_no_obstacle(hub: Hub, tmp_path: Path) -> None:
    fetch_snapshot(REPOSITORY, tmp_path / "deep" / "cache", silent, hub.endpoint)
    shutil.rmtree(tmp_path / "deep")
    fetch_snapshot(REPOSITORY, tmp_path / "deep" / "cache", silent, hub.endpoint)
