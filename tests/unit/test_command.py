"""The command line up to where processes start: what is said, to which stream, with which status."""

import fcntl
import signal
import socket
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from services.__main__ import main
from services.models.store import DEFAULT_MODEL


@pytest.fixture(autouse=True)
def _kept_signals() -> Generator[None]:  # pyright: ignore[reportUnusedFunction]
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


@pytest.fixture
def ports() -> list[str]:
    """Flags for ports that are free, whatever else runs here."""
    return ["--port", str(_free_port()), "--operator-port", str(_free_port())]


@pytest.mark.parametrize("argv", [[], ["help"], ["--help"]])
def test_without_a_command_it_says_what_to_do_next(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 0
    said = capsys.readouterr().out
    assert "fencepost up " in said
    assert DEFAULT_MODEL in said
    assert len(said.splitlines()) < 24


def test_version_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert capsys.readouterr().out.startswith("fencepost ")


def test_unknown_command_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve"]) == 2
    assert capsys.readouterr().err == "fencepost: no such command: serve; run `fencepost` for the list\n"


@pytest.mark.parametrize(
    ("command", "module", "advice"),
    [
        (["gateway"], "uvicorn", 'run: pip install "fencepost[gateway]"'),
        (["engine"], "torch", 'run: pip install "fencepost[engine]"'),
        (["up"], "numpy", 'run: pip install "fencepost[engine,tokenizer,models]"'),
        (["model", "pull"], "huggingface_hub", 'run: pip install "fencepost[models]"'),
    ],
)
def test_missing_extra_is_named(
    command: list[str],
    module: str,
    advice: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # What the import system itself sees where a package is not installed.
    monkeypatch.setitem(sys.modules, module, None)
    assert main(command) == 1
    assert capsys.readouterr().err == f"fencepost {command[0]}: not installed: {module}; {advice}\n"


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--port", "many"], "--port: expected a whole number"),
        (["--port", "70000"], "--port: must be at most 65535"),
        (["--vram-bytes", "2 GB or so"], "--vram-bytes: expected a size in bytes"),
        (["--engines", "0"], "--engines: must be at least 1"),
        (["--log-level", "loud"], "--log-level: expected one of debug, info, warning, error"),
        (["--host", "0.0.0.0"], "--host: 0.0.0.0 can be reached from the network"),
        (["--gpus", "8"], "--gpus"),
    ],
)
def test_bad_flag_of_up_is_one_line(argv: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", *argv]) == 2
    _assert_one_line(capsys, named)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("FENCEPOST_UP_PORT", "many"),
        ("FENCEPOST_UP_PROT", "8000"),
        ("FENCEPOST_PORT", "8000"),
        ("FENCEPOST_ENGINES_THREADS", "2"),
        ("FENCEPOST_ENGINE_THREADS", "two"),
        ("FENCEPOST_KVSTORE_SSD_BITES", "1"),
        ("FENCEPOST_TOKENIZER_ENCODE_THREADS", "0"),
        ("FENCEPOST_GATEWAY_GRACE_S", "1"),
    ],
)
def test_bad_variable_stops_up_before_anything_starts(
    variable: str,
    value: str,
    ports: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("FENCEPOST_UP_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("FENCEPOST_UP_MODEL", str(tmp_path / "no-such-model"))
    monkeypatch.setenv(variable, value)
    status = main(["up"] if variable == "FENCEPOST_UP_PORT" else ["up", *ports])
    if variable == "FENCEPOST_GATEWAY_GRACE_S":
        # A good variable of a service is let through; the model is what is missing.
        assert status == 1
        _assert_one_line(capsys, "no-such-model: no such model directory")
        return
    assert status == 2
    _assert_one_line(capsys, variable)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("flag", ["--port", "--operator-port", "--metrics-port"])
def test_port_in_use_is_named(flag: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    ports = {"--port": _free_port(), "--operator-port": _free_port()}
    argv = ["up", "--data-dir", str(tmp_path), "--model", "./none"]
    argv += [word for name, free in ports.items() if name != flag for word in (name, str(free))]
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken: int = server.getsockname()[1]
        assert main([*argv, flag, str(taken)]) == 1
    _assert_one_line(capsys, f"port {taken} on 127.0.0.1 is in use; free it or choose another with {flag}")


def test_one_port_for_two_purposes_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "--port", "8001"]) == 2
    _assert_one_line(capsys, "--operator-port: 8001 is --port already; choose another")


def test_keys_let_up_leave_loopback(ports: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    argv = ["up", "--data-dir", str(tmp_path), "--model", "./none", "--host", "0.0.0.0", *ports]
    assert main(argv) == 2
    _assert_one_line(capsys, "--host: 0.0.0.0 can be reached from the network")
    (tmp_path / "keys.json").touch()
    assert main(argv) == 1
    _assert_one_line(capsys, "none: no such model directory")


def test_a_certificate_that_cannot_be_read_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("FENCEPOST_GATEWAY_TLS_CERT_FILE", str(tmp_path / "cert.pem"))
    monkeypatch.setenv("FENCEPOST_GATEWAY_TLS_KEY_FILE", str(tmp_path / "key.pem"))
    assert main(["up", "--data-dir", str(tmp_path)]) == 2
    _assert_one_line(capsys, f"--tls-cert-file: cannot read {tmp_path / 'cert.pem'}: No such file or directory")


def test_second_up_on_the_same_data_is_refused(
    ports: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main(["up", "--data-dir", str(tmp_path), *ports]) == 1
    _assert_one_line(capsys, f"{tmp_path} is used by another `fencepost up`")


def test_unusable_data_dir_is_named(ports: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert main(["up", "--data-dir", str(tmp_path / "file"), *ports]) == 1
    _assert_one_line(capsys, f"--data-dir: cannot use {tmp_path / 'file'}: ")


def test_model_pull_prints_the_directory_alone(smollm2_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "pull", str(smollm2_dir)]) == 0
    assert capsys.readouterr().out == f"{smollm2_dir}\n"


def test_model_that_cannot_be_pulled_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "pull", "./nowhere"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "fencepost model pull: nowhere: no such model directory\n"


def _assert_one_line(capsys: pytest.CaptureFixture[str], named: str) -> None:
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("fencepost up: ")
    assert named in said.err
    assert said.err.count("\n") == 1
