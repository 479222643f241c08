"""Mutual TLS on the link: who gets in, and what both sides are told when somebody does not."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pydantic import ValidationError
from support.certificates import Authority
from support.links import block, hello

from ssd_cluster.config import DraftSettings, LinkSettings
from ssd_cluster.config_link import TlsSettings
from ssd_cluster.errors import ConfigError, LinkError
from ssd_cluster.link.codec import Side
from ssd_cluster.link.grpc_backend import Listener, connect
from ssd_cluster.link.loop import LinkLoop
from ssd_cluster.link.messages import BlockBatch
from ssd_cluster.link.stream import Inbox
from ssd_cluster.link.tls import load_tls

PATIENCE_S = 20.0


def link(tls: TlsSettings | None) -> LinkSettings:
    return LinkSettings(tls=tls)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("strange"), "stranger")


@pytest.fixture(scope="module")
def draft_tls(authority: Authority) -> TlsSettings:
    return authority.issue("draft", dns="draft.test", usage="server")


@pytest.fixture(scope="module")
def target_tls(authority: Authority) -> TlsSettings:
    return authority.issue("target", usage="client")


@contextmanager
def listening(tls: TlsSettings | None, loop: LinkLoop, inbox: Inbox, host: str = "127.0.0.1") -> Iterator[Listener]:
    listener = Listener(host, 0, inbox, link(tls), loop)
    yield listener
    listener.close()


def talk(listener: Listener, tls: TlsSettings | None, loop: LinkLoop, up: Inbox, down: Inbox) -> str:
    """A message each way; returns how the draft calls the target in its logs."""
    stream = connect(f"127.0.0.1:{listener.port}", up, link(tls), loop)
    stream.send(hello())
    received = down.receive(PATIENCE_S)
    assert received is not None
    draft_end, message = received
    assert message == hello()
    draft_end.send(BlockBatch((block(),)))
    assert up.receive(PATIENCE_S) == (stream, BlockBatch((block(),)))
    stream.close()
    return draft_end.peer


def refused(listener: Listener, tls: TlsSettings | None, loop: LinkLoop, up: Inbox, down: Inbox) -> str:
    with pytest.raises(LinkError) as caught:
        connect(f"127.0.0.1:{listener.port}", up, link(tls), loop)
    assert down.drain() == []
    return caught.value.message


def test_both_sides_know_each_other(
    loop: LinkLoop, target_inbox: Inbox, draft_inbox: Inbox, draft_tls: TlsSettings, target_tls: TlsSettings
) -> None:
    with listening(draft_tls, loop, draft_inbox) as listener:
        peer = talk(listener, target_tls, loop, target_inbox, draft_inbox)
    assert peer.endswith("(target)")


def test_beyond_loopback_with_tls(
    loop: LinkLoop, target_inbox: Inbox, draft_inbox: Inbox, draft_tls: TlsSettings, target_tls: TlsSettings
) -> None:
    with listening(draft_tls, loop, draft_inbox, "0.0.0.0") as listener:
        talk(listener, target_tls, loop, target_inbox, draft_inbox)


def test_a_certificate_by_name_instead_of_address(
    loop: LinkLoop, target_inbox: Inbox, draft_inbox: Inbox, authority: Authority, target_tls: TlsSettings
) -> None:
    elsewhere = authority.issue("moved", dns="draft.test", address="192.0.2.1", usage="server")
    named = target_tls.model_copy(update={"server_name": "draft.test"})
    with listening(elsewhere, loop, draft_inbox) as listener:
        text = refused(listener, target_tls, loop, target_inbox, draft_inbox)
        assert "the draft's certificate is refused here" in text
        assert "127.0.0.1" in text
        talk(listener, named, loop, target_inbox, draft_inbox)


def test_a_draft_has_no_server_name_to_expect(draft_tls: TlsSettings) -> None:
    named = draft_tls.model_copy(update={"server_name": "draft.test"})
    with pytest.raises(ValidationError, match=r"link\.tls\.server_name is for targets"):
        DraftSettings.model_validate({"model": {"path": "x"}, "link": {"tls": named.model_dump()}})


def test_a_foreign_target_is_told_that_the_draft_refuses_it(
    loop: LinkLoop,
    target_inbox: Inbox,
    draft_inbox: Inbox,
    stranger: Authority,
    authority: Authority,
    draft_tls: TlsSettings,
    target_tls: TlsSettings,
    capfd: pytest.CaptureFixture[str],
) -> None:
    both = authority.folder / "both.pem"  # our own authority, or a target would refuse to use the certificate at all
    both.write_bytes(authority.file.read_bytes() + stranger.file.read_bytes())
    foreign = stranger.issue("foreign", usage="client", authority=both)
    with listening(draft_tls, loop, draft_inbox) as listener:
        text = refused(listener, foreign, loop, target_inbox, draft_inbox)
        assert "the draft refuses this target's certificate" in text
        assert str(foreign.certificate) in text
        assert "has its link.tls.authority signed it" in text
        talk(listener, target_tls, loop, target_inbox, draft_inbox)
    assert "CERTIFICATE_VERIFY_FAILED" in capfd.readouterr().err  # what gRPC itself says on the draft's side


def test_a_foreign_draft_is_refused_by_the_target(
    loop: LinkLoop, target_inbox: Inbox, draft_inbox: Inbox, stranger: Authority, target_tls: TlsSettings
) -> None:
    with listening(stranger.issue("fake", usage="server"), loop, draft_inbox) as listener:
        text = refused(listener, target_tls, loop, target_inbox, draft_inbox)
    assert "the draft's certificate is refused here: unable to get local issuer certificate" in text


def test_a_target_without_tls_is_told_to_set_it(
    loop: LinkLoop, target_inbox: Inbox, draft_inbox: Inbox, draft_tls: TlsSettings
) -> None:
    with listening(draft_tls, loop, draft_inbox) as listener:
        text = refused(listener, None, loop, target_inbox, draft_inbox)
    assert "it wants TLS; set link.tls" in text


def test_a_draft_without_tls_is_not_taken_by_a_target_with_it(
    loop: LinkLoop, target_inbox: Inbox, draft_inbox: Inbox, target_tls: TlsSettings
) -> None:
    with listening(None, loop, draft_inbox) as listener:
        text = refused(listener, target_tls, loop, target_inbox, draft_inbox)
    assert "does not speak TLS" in text


def test_what_listens_never_answers_the_handshake(loop: LinkLoop, target_inbox: Inbox, target_tls: TlsSettings) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        settings = LinkSettings(tls=target_tls, connect_timeout_s=0.3)
        with pytest.raises(LinkError, match=r"within 0\.3 s"):
            connect(f"127.0.0.1:{silent.getsockname()[1]}", target_inbox, settings, loop)


@pytest.mark.parametrize("side", list(Side))
def test_an_expired_certificate_is_refused_by_its_own_side(
    loop: LinkLoop, target_inbox: Inbox, draft_inbox: Inbox, authority: Authority, side: Side
) -> None:
    old = authority.issue("old", days=-1)
    uses = {
        Side.DRAFT: lambda: Listener("127.0.0.1", 0, draft_inbox, link(old), loop),
        Side.TARGET: lambda: connect("127.0.0.1:1", target_inbox, link(old), loop),
    }
    with pytest.raises(ConfigError, match=r"old\.pem would be refused by every peer: certificate has expired"):
        uses[side]()


def test_a_certificate_that_expires_in_service_is_named_to_the_target(
    loop: LinkLoop,
    target_inbox: Inbox,
    draft_inbox: Inbox,
    authority: Authority,
    target_tls: TlsSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = authority.issue("late", days=-1, usage="server")
    monkeypatch.setattr("ssd_cluster.link.tls._try_own", lambda settings, side: None)  # it was good at the start
    with listening(old, loop, draft_inbox) as listener:
        text = refused(listener, target_tls, loop, target_inbox, draft_inbox)
    assert "the draft's certificate is refused here: certificate has expired" in text


@pytest.mark.parametrize(("side", "usage"), [(Side.DRAFT, "client"), (Side.TARGET, "server")])
def test_a_certificate_for_the_other_side_is_refused(authority: Authority, side: Side, usage: str) -> None:
    with pytest.raises(ConfigError, match="would be refused by every peer"):
        load_tls(authority.issue("misused", usage=usage), side)


def test_a_certificate_of_another_authority_is_refused_at_the_start(authority: Authority, stranger: Authority) -> None:
    with pytest.raises(ConfigError, match="would be refused by every peer: unable to get local issuer certificate"):
        load_tls(stranger.issue("lost", authority=authority.file), Side.DRAFT)


def test_files_that_cannot_be_used_are_named(authority: Authority, tmp_path: Path) -> None:
    good, other = authority.issue("a"), authority.issue("b")
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("no certificate")
    missing = tmp_path / "missing.pem"
    cases = {
        "a.pem and .*b.key are no PEM certificate and its key: key values mismatch": {"key": other.key},
        "garbage.pem and": {"certificate": garbage},
        "link.tls.authority: .*garbage.pem holds no PEM certificate": {"authority": garbage},
        "link.tls.authority: cannot read .*missing.pem: No such file": {"authority": missing},
        "link.tls.key: cannot read .*missing.pem": {"key": missing},
        "link.tls.certificate: cannot read .*missing.pem": {"certificate": missing},
    }
    for message, change in cases.items():
        with pytest.raises(ConfigError, match=message):
            load_tls(good.model_copy(update=change), Side.DRAFT)


def test_a_key_with_a_passphrase_is_refused_without_asking_for_it(authority: Authority) -> None:
    with pytest.raises(ConfigError, match=r"locked\.key has a passphrase"):
        load_tls(authority.issue("locked", passphrase=b"secret"), Side.TARGET)


def test_an_open_key_file_is_warned_about(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    tls = authority.issue("open")
    load_tls(tls, Side.DRAFT)
    assert caplog.text == ""
    tls.key.chmod(0o644)
    load_tls(tls, Side.DRAFT)
    assert f"setting=link.tls.key file={tls.key} mode=0644" in caplog.text


def test_keys_show_up_nowhere(authority: Authority) -> None:
    tls = authority.issue("private")
    files = load_tls(tls, Side.DRAFT)
    assert "PRIVATE KEY" in files.key.decode()
    assert "PRIVATE" not in repr(files) + repr(tls) + tls.model_dump_json()
