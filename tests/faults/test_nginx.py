"""configs/cluster/nginx.conf in a real nginx, before the proxies of two nodes: ingress replicas die, then a node."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.faults.load import Load, Outcome, ask, counts
from tests.faults.served_cluster import ServedCluster, seconds_until, status_of
from tests.faults.test_losses import model
from tests.integration.serve_process import PROJECT_ROOT, steady_ports

pytestmark = [pytest.mark.nginx, pytest.mark.timeout(900)]

CONFIG = PROJECT_ROOT / "configs" / "cluster" / "nginx.conf"
KEY = "a-key-of-the-test"
INGRESSES = 3


def for_this_machine(text: str, port: int, servers: list[int], folder: Path) -> str:
    """The config with `servers` of this machine, without TLS, and with its files in `folder`."""
    (folder / "keys.map").write_text(f'"Bearer {KEY}" 1;\n')
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    folders = "".join(f"    {kind}_temp_path {folder}/{kind};\n" for kind in kinds)
    changes = {
        "events {": f"daemon off;\npid {folder}/nginx.pid;\nerror_log {folder}/error.log;\nevents {{",
        "http {": f"http {{\n    access_log off;\n{folders}",
        "/etc/nginx/eyrie_keys.map": f"{folder}/keys.map",
        "listen 443 ssl;": f"listen 127.0.0.1:{port};",
        "10.0.1.11:8000": f"127.0.0.1:{servers[0]}",
        "10.0.1.12:8000": f"127.0.0.1:{servers[1]}",
        # The test's clients are many behind one key.
        "rate=20r/s": "rate=1000r/s",
    }
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    return "\n".join(line for line in text.splitlines() if not line.strip().startswith("ssl_"))


@pytest.fixture
def nginx(cluster: ServedCluster, tmp_path: Path) -> Iterator[str]:
    """Its address."""
    program = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
    assert program, "this test needs nginx, which is not installed here; on Debian: apt-get install nginx-light"
    cluster.deploy(model(cluster), {}, ingress={"num_cpus": 0, "num_replicas": INGRESSES})
    cluster.wait_for_replicas(2)
    seconds_until(lambda: cluster.running("Ingress") == INGRESSES, 120, "the ingress replicas")
    for port in cluster.ports:
        seconds_until(
            lambda port=port: status_of(f"http://127.0.0.1:{port}/health") == 200, 120, f"the proxy at {port}"
        )
    [port], path = steady_ports(1), tmp_path / "nginx.conf"
    path.write_text(for_this_machine(CONFIG.read_text(encoding="utf-8"), port, cluster.ports[1:], tmp_path))
    subprocess.run([program, "-t", "-c", path], check=True, capture_output=True)
    process = subprocess.Popen([program, "-c", path])
    try:
        url = f"http://127.0.0.1:{port}"
        seconds_until(lambda: status_of(f"{url}/health") == 200, 60, "nginx")
        yield url
    finally:
        process.terminate()
        process.wait(30)


def test_nginx_while_ingress_replicas_die(nginx: str, cluster: ServedCluster) -> None:
    authorised: dict[str, Any] = {"key": KEY}
    alone = Outcome(stream=False)
    ask(nginx, False, alone, **authorised)
    load = Load()
    load.start(nginx, 12, stream=False, **authorised)
    streams = load.start(nginx, 12, stream=True, **authorised)
    seconds_until(lambda: sum(bool(one.times) for one in streams) >= 4, 60, "some streams")
    [*victims, _] = cluster.replicas("Ingress")
    for victim in victims:
        os.kill(victim.pid, signal.SIGKILL)
    outcomes = load.finish()
    later = Load()
    later.start(nginx, 6, stream=False, max_tokens=20, **authorised)
    late = later.finish()
    told = f"{counts(outcomes)}; asked after that: {counts(late)}"
    print(f"\nnginx, {len(victims)} of {INGRESSES} ingress replicas killed: {told}")
    assert {one.kind for one in [*outcomes, *late] if not one.stream} == {"whole"}
    assert {one.text for one in outcomes if one.kind == "whole"} == {alone.text}
    lost = [one for one in streams if one.kind != "whole"]
    # They had begun, and break off: never a silent end.
    assert {one.kind for one in lost} == {"broken"}
    assert all(one.times for one in lost)
    assert len(lost) < len(streams)


def test_nginx_before_two_proxies_while_one_node_dies(nginx: str, cluster: ServedCluster) -> None:
    authorised: dict[str, Any] = {"key": KEY}
    assert httpx.post(f"{nginx}/v1/completions", json={}).status_code == 401
    assert status_of(f"{nginx}/stats") == 404
    alone = Outcome(stream=True)
    ask(nginx, True, alone, **authorised)
    assert alone.kind == "whole", alone
    # A chunk a step as it comes, not all at the end.
    assert len(alone.times) > 10
    assert alone.times[-1] - alone.times[0] > 0.5 * (alone.times[-1] - alone.begin)

    load = Load()
    load.start(nginx, 8, stream=False, **authorised)
    streams = load.start(nginx, 12, stream=True, **authorised)
    seconds_until(lambda: sum(bool(one.times) for one in streams) >= 4, 60, "some streams")
    cluster.process.tell(f"kill {cluster.ports[1]}")
    later = Load()
    later.start(nginx, 12, stream=False, max_tokens=20, **authorised)
    outcomes, late = load.finish(), later.finish()
    print(f"\nnginx, a node killed: {counts(outcomes)}; asked after that: {counts(late)}")
    assert {one.kind for one in [*outcomes, *late] if not one.stream} == {"whole"}
    assert {one.text for one in outcomes if one.kind == "whole"} == {alone.text}
    lost = [one for one in streams if one.kind != "whole"]
    # An error event, or where the client's own proxy died a connection that breaks off: never a silent end.
    assert {one.kind for one in lost} <= {"told", "broken"}
    assert all(one.times for one in lost)
    assert len(lost) < len(streams)
    cluster.process.tell(f"add {cluster.ports[1]}")
    cluster.wait_for_replicas(2)
