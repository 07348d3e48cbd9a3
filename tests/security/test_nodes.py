"""A real SuperLink refuses nodes that nobody registered, and nodes refuse a server that they do not know.

The other attacks on a deployment are tested without processes: restarted, absent and late sites, a second
node with a site's name, a restarted server, two runs at once (`tests/flower`), damaged files (`test_files`),
full disks (`test_machines`).
"""

from functools import partial

import pytest

from fedgram.flower.certificates import LOCALHOST, write_certificate, write_node_key
from fedgram.flower.deployment import LocalFederation, find_free_port

pytestmark = pytest.mark.slow


def test_only_registered_nodes_and_known_servers_connect(tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    key = write_node_key(other, "nobody").private
    with LocalFederation(tmp_path / "federation", 2) as federation:
        authorities = {
            "unregistered-key": federation.certificate.public,
            "wrong-authority": write_certificate(other).public,
        }
        for name, authority in authorities.items():
            federation.processes.start(
                name, "flower-supernode", "--superlink", federation.address, "--root-certificates",
                str(authority), "--auth-supernode-private-key", str(key), "--host", LOCALHOST, "--port",
                str(find_free_port()), "--max-retries", "1",
                environment={"FLWR_HOME": str(tmp_path / name)},
            )  # fmt: skip
            has_ended = partial(federation.processes.has_ended, name)
            federation.processes.wait_until(has_ended, name, 120, needs=[])
            federation.processes.stop(name)
            assert "SuperNode ID:" not in federation.processes.log(name).read_text()
