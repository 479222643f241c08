"""Bearer tokens on the link, the cap on streams, and what is refused beyond loopback."""

from __future__ import annotations

import logging
import os
from collections import Counter
from pathlib import Path

import pytest
from pydantic import ValidationError
from support.certificates import write_secrets
from support.links import hello

from ssd_cluster.config import DraftSettings, LinkSettings
from ssd_cluster.errors import ConfigError, LinkError
from ssd_cluster.link.access import Doorman, Refusal
from ssd_cluster.link.grpc_backend import Listener, connect
from ssd_cluster.link.loop import LinkLoop
from ssd_cluster.link.stream import Inbox, Stream

TOKEN = "correct-horse-battery-staple"
OTHER = "wrong-horse-battery-staple"
PATIENCE_S = 20.0


def settings(path: Path | None) -> LinkSettings:
    return LinkSettings(token_file=path)


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    return write_secrets(tmp_path / "draft.token", TOKEN)


class Door:
    """A listener that wants a token, and what it refused."""

    def __init__(self, loop: LinkLoop, inbox: Inbox, token_file: Path | None, max_streams: int | None = None) -> None:
        self.refused: Counter[str] = Counter()
        self.inbox = inbox
        self.loop = loop
        self.listener = Listener(
            "127.0.0.1",
            0,
            inbox,
            settings(token_file),
            loop,
            max_streams=max_streams,
            refused=lambda reason: self.refused.update([reason]),
        )

    def enter(self, token_file: Path | None, up: Inbox) -> Stream:
        stream = connect(self.listener.endpoint, up, settings(token_file), self.loop)
        stream.send(hello())
        received = self.inbox.receive(PATIENCE_S)
        assert received is not None
        assert received[1] == hello()
        return stream


def test_the_right_token_opens(loop: LinkLoop, target_inbox: Inbox, draft_inbox: Inbox, token_file: Path) -> None:
    door = Door(loop, draft_inbox, token_file)
    door.enter(token_file, target_inbox)
    assert not door.refused


def test_no_token_and_a_wrong_one_are_refused_and_both_sides_say_so(
    loop: LinkLoop,
    target_inbox: Inbox,
    draft_inbox: Inbox,
    token_file: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    door = Door(loop, draft_inbox, token_file)
    with pytest.raises(LinkError, match=r"refused at .*: the draft wants a token: set link.token_file"):
        door.enter(None, target_inbox)
    with pytest.raises(LinkError, match=r"refused at .*: the draft does not know this token") as caught:
        door.enter(write_secrets(tmp_path / "other", OTHER), target_inbox)
    assert door.refused == {"no_token": 1, "wrong_token": 1}
    assert draft_inbox.drain() == []
    assert "stream refused peer=ipv4:127.0.0.1:" in caplog.text
    for text in (caplog.text, str(caught.value), repr(caught.value)):
        assert TOKEN not in text
        assert OTHER not in text


def test_tokens_are_exchanged_without_a_restart(
    loop: LinkLoop, target_inbox: Inbox, draft_inbox: Inbox, token_file: Path, tmp_path: Path
) -> None:
    door = Door(loop, draft_inbox, token_file)
    mine = write_secrets(tmp_path / "target.token", TOKEN)
    door.enter(mine, target_inbox)
    write_secrets(token_file, OTHER, TOKEN)  # both for a while
    door.enter(mine, target_inbox)
    write_secrets(mine, OTHER)
    door.enter(mine, target_inbox)
    write_secrets(token_file, OTHER)
    door.enter(mine, target_inbox)
    write_secrets(mine, TOKEN)
    with pytest.raises(LinkError, match="does not know this token"):
        door.enter(mine, target_inbox)


def test_the_cap_on_streams(loop: LinkLoop, target_inbox: Inbox, draft_inbox: Inbox) -> None:
    door = Door(loop, draft_inbox, None, max_streams=2)
    first = door.enter(None, target_inbox)
    door.enter(None, target_inbox)
    with pytest.raises(LinkError, match="as many streams as max_streams allows"):
        door.enter(None, target_inbox)
    assert door.refused == {"full": 1}
    first.close()
    received = draft_inbox.receive(PATIENCE_S)  # its end
    assert received is not None
    loop.call(received[0].shutdown("again"), PATIENCE_S)  # type: ignore[attr-defined]
    door.enter(None, target_inbox)


def test_beyond_loopback_a_token_suffices_and_the_risk_is_logged(
    loop: LinkLoop, draft_inbox: Inbox, token_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Listener("0.0.0.0", 0, draft_inbox, settings(token_file), loop).close()
    assert "prompts, outputs and the token can be read on the network" in caplog.text
    caplog.clear()
    Listener("127.0.0.1", 0, draft_inbox, settings(token_file), loop).close()
    assert caplog.text == ""


def test_a_target_with_a_token_may_go_beyond_loopback(
    loop: LinkLoop, target_inbox: Inbox, token_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    unreachable = LinkSettings(token_file=token_file, connect_timeout_s=0.2)
    with pytest.raises(LinkError):
        connect("192.0.2.1:50051", target_inbox, unreachable, loop)
    with pytest.raises(ConfigError, match=r"set link.tls .* or link.token_file on targets and drafts"):
        connect("192.0.2.1:50051", target_inbox, settings(None), loop)


def test_a_draft_beyond_loopback_is_refused_where_it_is_configured(token_file: Path) -> None:
    with pytest.raises(ValidationError, match=r"set link.tls .* or link.token_file"):
        DraftSettings.model_validate({"model": {"path": "x"}, "host": "0.0.0.0"})
    allowed = {"model": {"path": "x"}, "host": "0.0.0.0", "link": {"token_file": str(token_file)}}
    dump = DraftSettings.model_validate(allowed).model_dump_json()
    assert str(token_file) in dump
    assert TOKEN not in dump


def test_a_relative_path_is_refused() -> None:
    with pytest.raises(ValidationError, match="must be an absolute path"):
        LinkSettings.model_validate({"token_file": "draft.token"})


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "holds no secret"),
        ("# only a comment\n", "holds no secret"),
        ("# first\nshort\n", "line 2 of .* is no secret of at least 16 printable characters"),
        ("sixteen characters with blanks\n", "line 1 of"),
        ("ümlaut-ümlaut-ümlaut\n", "is no ASCII text"),
    ],
)
def test_a_token_file_that_cannot_be_used(
    loop: LinkLoop, draft_inbox: Inbox, target_inbox: Inbox, tmp_path: Path, content: str, says: str
) -> None:
    path = tmp_path / "token"
    path.write_text(content)
    for use in (
        lambda: Listener("127.0.0.1", 0, draft_inbox, settings(path), loop),
        lambda: connect("127.0.0.1:1", target_inbox, settings(path), loop),
    ):
        with pytest.raises(ConfigError, match=says) as caught:
            use()
        assert "short" not in caught.value.message.replace("shorter", "")


def test_refusals_do_not_flood_the_log(token_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    counted: Counter[str] = Counter()
    doorman = Doorman(settings(token_file), None, lambda reason: counted.update([reason]), clock=lambda: now)
    metadata = (("authorization", f"bearer {TOKEN}"),)
    assert doorman.refusal(metadata, "p", 0) is None
    for _ in range(100):
        assert doorman.refusal((), "p", 0) is Refusal.NO_TOKEN
    now = 11.0
    doorman.refusal((), "p", 0)
    lines = [record.getMessage() for record in caplog.records]
    assert [line.rpartition("=")[2] for line in lines] == ["0", "99"]
    assert counted == {"no_token": 101}


def test_a_broken_file_keeps_the_tokens_that_were_read(token_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    doorman = Doorman(settings(token_file), None, None)
    metadata = (("authorization", f"Bearer {TOKEN}"),)
    token_file.write_text("")
    assert doorman.refusal(metadata, "p", 0) is None
    os.unlink(token_file)
    assert doorman.refusal(metadata, "p", 0) is None
    assert caplog.text.count("secrets kept as they were") == 2


def test_an_open_token_file_is_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Doorman(settings(write_secrets(tmp_path / "a", TOKEN, mode=0o640)), None, None)
    assert caplog.text == ""
    Doorman(settings(write_secrets(tmp_path / "b", TOKEN, mode=0o604)), None, None)
    assert "mode=0604 do=chmod_600" in caplog.text
