"""Two network name spaces, joined by a cable, are two hosts: nothing is declared."""

import os
import shutil
import subprocess
import sys
import textwrap

import pytest

MANUAL = "https://man7.org/linux/man-pages/man8/ip-netns.8.html"

RANK = """
import os, sys
import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
torch.kunlun.set_device(rank % torch.kunlun.device_count())
dist.init_process_group("xccl")
x = torch.full((30000,), rank + 1.0, device="kunlun")
dist.all_reduce(x)
assert x.unique().tolist() == [6.0]
parts = [torch.empty(3, device="kunlun") for _ in range(3)]
dist.all_gather(parts, torch.full((3,), float(rank), device="kunlun"))
assert [part.tolist() for part in parts] == [[float(r)] * 3 for r in range(3)]
y = torch.zeros(5, device="kunlun")
for work in dist.batch_isend_irecv([
    dist.P2POp(dist.isend, torch.full((5,), float(rank), device="kunlun"), (rank + 1) % 3),
    dist.P2POp(dist.irecv, y, (rank - 1) % 3),
]):
    work.wait()
assert y.tolist() == [float((rank - 1) % 3)] * 5
dist.destroy_process_group()
print("well")
"""


@pytest.fixture
def network():
    """Names of two name spaces, each with an end of the cable: eth-k, 10.123.45.1 and 10.123.45.2."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip(f"name spaces need root and iproute2 ({MANUAL})")
    names = [f"kunlun-{os.getpid()}-{i}" for i in range(2)]

    def ip(*words):
        subprocess.run(["ip", *words], check=True, capture_output=True)

    made = []
    try:
        for name in names:
            try:
                ip("netns", "add", name)
            except subprocess.CalledProcessError as error:
                pytest.skip(f"this system allows no network name spaces: {error.stderr} ({MANUAL})")
            made.append(name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("-n", names[0], "link", "add", "eth-k", "type", "veth", "peer", "name", "eth-k", "netns", names[1])
        for i, name in enumerate(names):
            ip("-n", name, "address", "add", f"10.123.45.{i + 1}/24", "dev", "eth-k")
            ip("-n", name, "link", "set", "eth-k", "up")
        yield names
    finally:
        for name in made:
            ip("netns", "delete", name)


def test_ranks_in_two_network_name_spaces(network, tmp_path):
    program = tmp_path / "rank.py"
    program.write_text(textwrap.dedent(RANK))
    environment = os.environ | {
        "WORLD_SIZE": "3",
        "MASTER_ADDR": "10.123.45.1",
        "MASTER_PORT": "29533",
        "GLOO_SOCKET_IFNAME": "eth-k",
        "OMP_NUM_THREADS": "1",
        "KUNLUN_SIM_DEVICES": "2",
    }
    ranks = []
    try:
        for rank, host in enumerate([0, 0, 1]):
            command = ["ip", "netns", "exec", network[host], sys.executable, str(program)]
            ranks.append(
                subprocess.Popen(
                    command,
                    env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        for index, rank in enumerate(ranks):
            out, err = rank.communicate(timeout=200)
            assert rank.returncode == 0, f"rank {index}:\n{err}"
            assert out == "well\n"
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
                rank.wait()
