"""A certificate of our own for a measurement over TLS, made with openssl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from ssd_cluster.config_link import TlsSettings
from ssd_cluster.errors import ConfigError

_DEADLINE_S = 30.0


def self_signed(folder: Path) -> TlsSettings:
    """Key and certificate for both ends, which is its own authority, for this machine and one day.

    Raises:
        ConfigError: there is no openssl, or it fails.
    """
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    command = [
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1",
        "-keyout", str(key), "-out", str(certificate), "-subj", "/CN=ssd-cluster bench link",
        "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
    ]  # fmt: skip
    without = "leave grpc-tls out of --backends"
    if shutil.which("openssl") is None:
        raise ConfigError(f"backend grpc-tls makes its certificate with openssl, which is not here: {without}")
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_DEADLINE_S)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"openssl made no certificate ({error}); {without}") from None
    key.chmod(0o600)
    return TlsSettings(certificate=certificate, key=key, authority=certificate)
