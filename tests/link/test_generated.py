"""The generated code is what ``protos/`` says, and does not shadow the package."""

from __future__ import annotations

import re
from pathlib import Path

from google.protobuf import descriptor_pb2

import ssd_cluster
from ssd_cluster.link import generate
from ssd_cluster.link._pb import draft_link_pb2 as pb

FOLDER = Path(pb.__file__).parent


def _without_version(text: str) -> str:
    """Generated text less the compiler's own version, which may differ between installations."""
    text = re.sub(r"# Protobuf Python Version: \S+", "", text)
    return re.sub(r"(_runtime_version\.Domain\.PUBLIC),\s*\d+,\s*\d+,\s*\d+,", r"\1,", text)


def test_generated_code_has_not_drifted(tmp_path: Path) -> None:
    for fresh in generate.generate(tmp_path):
        assert _without_version(fresh.read_text()) == _without_version((FOLDER / fresh.name).read_text()), (
            f"{fresh.name} differs: run python -m ssd_cluster.link.generate"
        )


def test_the_service_is_named_as_in_the_protocol() -> None:
    file = descriptor_pb2.FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(file)
    (service,) = file.service
    (method,) = service.method
    assert (file.package, service.name, method.name) == ("ssd_cluster.v1", "DraftLink", "Rounds")
    assert method.client_streaming
    assert method.server_streaming


def test_the_package_is_still_ours() -> None:
    assert (Path(ssd_cluster.__file__).parent / "link").is_dir()
    assert not (Path(ssd_cluster.__file__).parent / "v1").exists()
