"""The commands of docs/security.md make certificates and a token that the link takes."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.links import hello

from ssd_cluster.config import LinkSettings
from ssd_cluster.config_link import TlsSettings
from ssd_cluster.link.grpc_backend import Listener, connect
from ssd_cluster.link.loop import LinkLoop
from ssd_cluster.link.stream import Inbox

DOC = Path(__file__).parents[2] / "docs" / "security.md"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="the commands use openssl")
def test_the_documented_commands_work(
    tmp_path: Path, loop: LinkLoop, target_inbox: Inbox, draft_inbox: Inbox, caplog: pytest.LogCaptureFixture
) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", DOC.read_text(), re.DOTALL)
    assert len(blocks) == 2
    subprocess.run(["bash", "-e", "-c", "\n".join(blocks)], cwd=tmp_path, check=True, capture_output=True, timeout=60)

    def link(side: str, server_name: str | None) -> LinkSettings:
        tls = TlsSettings(
            certificate=tmp_path / f"{side}.pem",
            key=tmp_path / f"{side}.key",
            authority=tmp_path / "authority.pem",
            server_name=server_name,
        )
        return LinkSettings(tls=tls, token_file=tmp_path / "drafts.token")

    listener = Listener("0.0.0.0", 0, draft_inbox, link("draft", None), loop)
    endpoint = listener.endpoint_at("127.0.0.1")
    connect(endpoint, target_inbox, link("target", "drafts.internal"), loop).send(hello())
    received = draft_inbox.receive(20.0)
    assert received is not None
    assert received[0].peer.endswith("(target-llama-70b)")
    listener.close()
    assert caplog.text == ""
