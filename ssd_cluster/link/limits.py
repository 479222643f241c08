"""What a stream accepts from its peer: caps on counts and sizes, and the vocabulary once it is known."""

from __future__ import annotations

from dataclasses import dataclass

from ssd_cluster.errors import ConfigError

MAX_U8 = (1 << 8) - 1
MAX_U16 = (1 << 16) - 1
MAX_U32 = (1 << 32) - 1
MAX_INVALID_FRAMES = 16  # a stream that brought more is closed


@dataclass(frozen=True, slots=True)
class Limits:
    """Caps that every received frame is checked against; a frame beyond one is an ``InvalidFrame``.

    Attributes:
        vocabulary: token ids are below it. Until an engine has said its own vocabulary (its Hello or Welcome, sent on
            the stream), any u32 passes.
        k_max: most tokens of a proposal or behind a branch, and the largest kept length. This is the cap of the
            protocol; a draft whose own ``k_max`` is smaller treats a longer proposal as it sees fit.
        sessions: most rows of a commit, blocks of a batch, or sessions of a Close.
        branches: most branches of one block.
        stop_ids: most stop ids of an Open.
        text: most characters of a name, hash or detail.
        store_value: most bytes of one entry of a tensor channel's rendezvous.
        frame_bytes: most bytes of a frame, both ways.
    """

    vocabulary: int = MAX_U32 + 1
    k_max: int = 64
    sessions: int = 4096
    branches: int = 1024
    stop_ids: int = 4096
    text: int = 1024
    store_value: int = 64 * 1024
    frame_bytes: int = 4 * 1024 * 1024

    def __post_init__(self) -> None:
        caps = {
            "vocabulary": MAX_U32 + 1,
            "k_max": MAX_U8,
            "sessions": MAX_U32,
            "branches": MAX_U16,
            "stop_ids": MAX_U32,
            "text": MAX_U32,
            "store_value": MAX_U32,
            "frame_bytes": (1 << 31) - 1,
        }
        for name, cap in caps.items():
            if not 1 <= getattr(self, name) <= cap:
                raise ConfigError(f"{name} must be between 1 and {cap}, got {getattr(self, name)!r}", param=name)
