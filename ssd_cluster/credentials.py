"""Files of bearer tokens and API keys. What is held here or said in errors and logs is never the secret itself."""

from __future__ import annotations

import hashlib
import hmac
import logging
import math
import stat
import time
from collections.abc import Callable
from pathlib import Path

from ssd_cluster.errors import ConfigError

log = logging.getLogger(__name__)

MIN_LENGTH = 16
MAX_FILE_BYTES = 1 << 20
SAY_EVERY_S = 10.0
_TOO_OPEN = stat.S_IRWXO | stat.S_IWGRP  # a group may read: that is how Kubernetes mounts secrets for one


def read_keys(path: Path, key: str) -> tuple[str, ...]:
    """The secrets in a file: one per line; blank lines and lines that start with # do not count.

    Args:
        path: of the file.
        key: the setting that names it, for messages.

    Raises:
        ConfigError: it cannot be read, holds none, or one of them is no printable ASCII word of 16 characters or more;
            the message names the file and the line.
    """
    try:
        text = read_secret(path, key).decode("ascii")
    except UnicodeDecodeError:
        raise ConfigError(f"{key}: {path} is no ASCII text", param=key) from None
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        word = line.strip()
        if not word or word.startswith("#"):
            continue
        if len(word) < MIN_LENGTH or not word.isprintable() or " " in word:
            raise ConfigError(
                f"{key}: line {number} of {path} is no secret of at least {MIN_LENGTH} printable characters without "
                "blanks; `openssl rand -hex 32` makes one",
                param=key,
            )
        found.append(word)
    if not found:
        raise ConfigError(f"{key}: {path} holds no secret; write one per line", param=key)
    return tuple(found)


def read_secret(path: Path, key: str) -> bytes:
    """The content of a secret file; warns if others than its owner and group may read it.

    Raises:
        ConfigError: it cannot be read or is no file of reasonable size.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        mode = path.stat().st_mode
    except OSError as error:
        raise ConfigError(f"{key}: cannot read {path}: {error.strerror or type(error).__name__}", param=key) from None
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(f"{key}: {path} is larger than {MAX_FILE_BYTES} bytes", param=key)
    if mode & _TOO_OPEN:
        log.warning("secret file open to others setting=%s file=%s mode=%04o do=chmod_600", key, path, mode & 0o7777)
    return content


def bearer(header: str | None) -> str | None:
    """The secret in the value of an Authorization header, or None."""
    scheme, _, secret = (header or "").strip().partition(" ")
    return secret.strip() or None if scheme.lower() == "bearer" else None


class Complaints:
    """Log lines about refusals: the first at once, then at most one per ``SAY_EVERY_S``, with how many went unsaid.

    Args:
        logger: where they go.
        clock: seconds, monotonic.
    """

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = logger
        self._clock = clock
        self._silent_until = -math.inf
        self._unsaid = 0

    def say(self, what: str, peer: str, reason: str) -> None:
        """Log one refusal, or count it."""
        now = self._clock()
        if now < self._silent_until:
            self._unsaid += 1
            return
        self._log.warning("%s peer=%s reason=%s refused_since_last_line=%d", what, peer, reason, self._unsaid)
        self._silent_until, self._unsaid = now + SAY_EVERY_S, 0


class KeyRing:
    """The secrets that are accepted now. A file that has changed is read again, so that secrets can be exchanged.

    While a changed file cannot be used, the secrets read before stay valid, and the log says why. Thread-safe in the
    sense that concurrent calls may at worst read the file twice.

    Args:
        path: of the file, see ``read_keys``.
        key: the setting that names it.

    Raises:
        ConfigError: the file cannot be used.
    """

    def __init__(self, path: Path, key: str) -> None:
        self._path = path
        self._key = key
        self._version = self._stat()
        self._digests = self._read()

    def __len__(self) -> int:
        return len(self._digests)

    def __repr__(self) -> str:
        return f"KeyRing({str(self._path)!r}, {len(self)} secrets)"

    def accepts(self, secret: str | None) -> bool:
        """Whether this is one of the secrets; takes the same time for every wrong one."""
        self._refresh()
        if secret is None:
            return False
        digest = _digest(secret)
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return any(matches)

    def _refresh(self) -> None:
        version = self._stat()
        if version == self._version:
            return
        self._version = version
        try:
            self._digests = self._read()
            log.info("secrets read again setting=%s file=%s secrets=%d", self._key, self._path, len(self))
        except ConfigError as error:
            log.error("secrets kept as they were: %s", error.message)

    def _read(self) -> tuple[bytes, ...]:
        return tuple(_digest(secret) for secret in read_keys(self._path, self._key))

    def _stat(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


def _digest(secret: str) -> bytes:
    """Equal lengths for the comparison, and no secret in memory dumps of a draft."""
    return hashlib.sha256(secret.encode(errors="surrogateescape")).digest()
