import base64
from pathlib import Path

import pytest

from services import settings, stack
from services.stack import Replica, UpSettings


def _lay_out(config: UpSettings) -> dict[str, Replica]:
    stages = stack.lay_out(config, data_dir=Path("/data"), model_dir=Path("/models/m"), run_dir=Path("/run/x"))
    return {replica.name: replica for stage in stages for replica in stage}


def _flag(replica: Replica, name: str) -> str:
    return replica.flags[replica.flags.index(name) + 1]


def test_each_service_knows_only_the_next_one() -> None:
    replicas = _lay_out(UpSettings(engines=2, tokenizers=2))
    assert list(replicas) == ["gateway", "tokenizer-0", "tokenizer-1", "engine-0", "engine-1", "kvstore"]
    assert _flag(replicas["gateway"], "--tokenizers") == "unix:/run/x/tokenizer-0.sock,unix:/run/x/tokenizer-1.sock"
    assert _flag(replicas["tokenizer-1"], "--engines") == "unix:/run/x/engine-0.sock,unix:/run/x/engine-1.sock"
    assert _flag(replicas["engine-1"], "--listen") == "unix:/run/x/engine-1.sock"
    assert _flag(replicas["engine-1"], "--kvstore") == replicas["kvstore"].address == "unix:/run/x/kvstore.sock"
    assert _flag(replicas["kvstore"], "--data-dir") == "/data/kvstore"


def test_engines_and_kvstore_share_a_folder_in_memory_where_there_is_one() -> None:
    stages = stack.lay_out(
        UpSettings(), data_dir=Path("/d"), model_dir=Path("/m"), run_dir=Path("/r"), memory_dir=Path("/mem")
    )
    replicas = {replica.name: replica for stage in stages for replica in stage}
    assert (
        _flag(replicas["engine-0"], "--shared-memory-dir")
        == _flag(replicas["kvstore"], "--shared-memory-dir")
        == "/mem"
    )
    assert not any("--shared-memory-dir" in replica.flags for replica in _lay_out(UpSettings()).values())


def test_tokenizers_share_their_records_and_capsule_keys() -> None:
    replicas = _lay_out(UpSettings(tokenizers=2))
    for name in ("tokenizer-0", "tokenizer-1"):
        assert _flag(replicas[name], "--records") == replicas["kvstore"].address
        assert _flag(replicas[name], "--capsule-keys") == "/data/capsule-keys"


def test_capsule_keys_are_drawn_once_and_the_owners_only(tmp_path: Path) -> None:
    stack.ensure_capsule_keys(tmp_path)
    path = stack.capsule_keys(tmp_path)
    keys = path.read_text()
    key_id, _, encoded = keys.strip().partition(":")
    assert key_id
    assert len(base64.b64decode(encoded, validate=True)) == 32
    assert path.stat().st_mode & 0o777 == 0o600
    stack.ensure_capsule_keys(tmp_path)
    assert path.read_text() == keys


def test_senders_stop_before_their_receivers() -> None:
    stages = stack.lay_out(UpSettings(), data_dir=Path("/"), model_dir=Path("/"), run_dir=Path("/"))
    assert [stage[0].service for stage in stages] == ["gateway", "tokenizer", "engine", "kvstore"]


def test_what_is_not_set_is_left_to_each_service() -> None:
    for replica in _lay_out(UpSettings()).values():
        assert not {"--vram-bytes", "--ssd-bytes", "--log-level", "--metrics-listen"} & set(replica.flags)
    replicas = _lay_out(UpSettings(vram_bytes=10, ssd_bytes=20, log_level="debug"))
    assert _flag(replicas["engine-0"], "--vram-bytes") == "10"
    assert _flag(replicas["kvstore"], "--ssd-bytes") == "20"
    assert all(_flag(replica, "--log-level") == "debug" for replica in replicas.values())


def test_metrics_ports_follow_each_other() -> None:
    config = UpSettings(metrics_port=9100, engines=2)
    replicas = _lay_out(config)
    pages = [_flag(replicas[name], "--metrics-listen") for name in ("kvstore", "engine-0", "engine-1", "tokenizer-0")]
    assert pages == [f"127.0.0.1:{port}" for port in stack.metrics_ports(config)]
    assert pages[0] == "127.0.0.1:9100"


def test_opening_the_gateway_takes_both_flags() -> None:
    gateway = _lay_out(UpSettings(host="0.0.0.0", allow_unauthenticated_network=True))["gateway"]
    assert _flag(gateway, "--host") == "0.0.0.0"
    assert _flag(gateway, "--allow-unauthenticated-network") == "true"


def test_the_gateway_is_given_keys_and_an_address_for_its_operator() -> None:
    gateway = _lay_out(UpSettings())["gateway"]
    assert _flag(gateway, "--keys-file") == "/data/keys.json"
    assert _flag(gateway, "--operator-listen") == "127.0.0.1:8001"
    gateway = _lay_out(UpSettings(keys_file=Path("/etc/keys"), operator_port=9001))["gateway"]
    assert _flag(gateway, "--keys-file") == "/etc/keys"
    assert _flag(gateway, "--operator-listen") == "127.0.0.1:9001"


def test_the_gateways_own_variable_for_keys_is_not_overridden() -> None:
    environ = {"FENCEPOST_GATEWAY_KEYS_FILE": "/etc/keys"}
    assert stack.keys_file(settings.load(UpSettings, "up", (), environ)) == Path("/etc/keys")
    assert stack.keys_file(UpSettings(data_dir=Path("/data"))) == Path("/data/keys.json")


def test_model_id_is_what_clients_would_guess(tmp_path: Path) -> None:
    (tmp_path / "my-model").mkdir()
    assert stack.model_id("smollm2-135m-instruct") == "smollm2-135m-instruct"
    assert stack.model_id("org/name") == "org/name"
    assert stack.model_id(f"{tmp_path}/my-model/") == "my-model"
    assert stack.model_id("/models/tiny-q4.gguf") == "tiny-q4"


def test_data_dir_follows_the_xdg_specification() -> None:
    assert stack.default_data_dir({"XDG_DATA_HOME": "/x"}) == Path("/x/fencepost")
    assert stack.default_data_dir({"XDG_DATA_HOME": "relative"}) == Path.home() / ".local/share/fencepost"
    assert stack.default_data_dir({}) == Path.home() / ".local/share/fencepost"


def test_the_key_that_agents_read_may_be_set_where_the_stack_starts() -> None:
    stack.check_variables({"FENCEPOST_API_KEY": "fp_1_secret", "FENCEPOST_UP_PORT": "1", "HOME": "/home/me"})
    with pytest.raises(settings.SettingsError, match="FENCEPOST_API_KEYS"):
        stack.check_variables({"FENCEPOST_API_KEYS": "fp_1_secret"})
