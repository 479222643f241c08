"""Authorities and certificates made for one test."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ssd_cluster.config_link import TlsSettings

NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)
USAGES = {"client": ExtendedKeyUsageOID.CLIENT_AUTH, "server": ExtendedKeyUsageOID.SERVER_AUTH}


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    path.chmod(0o600)
    return path


def _pem(key: ec.EllipticCurvePrivateKey, passphrase: bytes | None = None) -> bytes:
    encryption = (
        serialization.BestAvailableEncryption(passphrase) if passphrase is not None else serialization.NoEncryption()
    )
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)


@dataclass
class Authority:
    """Signs certificates into a folder."""

    folder: Path
    name: str = "authority"

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        made = (
            self._builder(self.name, self._key.public_key(), NOW - DAY, NOW + DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.file = _write(self.folder / f"{self.name}.pem", made.public_bytes(serialization.Encoding.PEM))

    def _builder(
        self, name: str, key: ec.EllipticCurvePublicKey, start: datetime.datetime, end: datetime.datetime
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(_name(name))
            .issuer_name(_name(self.name))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(end)
        )

    def issue(
        self,
        name: str,
        *,
        dns: str = "localhost",
        address: str = "127.0.0.1",
        days: int = 1,
        usage: str | None = None,
        passphrase: bytes | None = None,
        authority: Path | None = None,
        server_name: str | None = None,
    ) -> TlsSettings:
        """Settings with a new certificate.

        Args:
            name: common name, and stem of the files.
            dns, address: subject alternative names.
            days: until it expires; negative: it expired so many days ago.
            usage: "client" or "server": good for that only.
            passphrase: of the key.
            authority: file that the holder trusts; default: ours.
            server_name: as in the settings.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.DNSName(dns), x509.IPAddress(ipaddress.ip_address(address))]
        end = NOW + days * DAY
        builder = self._builder(name, key.public_key(), min(NOW, end) - DAY, end)
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        if usage is not None:
            builder = builder.add_extension(x509.ExtendedKeyUsage([USAGES[usage]]), critical=False)
        made = builder.sign(self._key, hashes.SHA256())
        return TlsSettings(
            certificate=_write(self.folder / f"{name}.pem", made.public_bytes(serialization.Encoding.PEM)),
            key=_write(self.folder / f"{name}.key", _pem(key, passphrase)),
            authority=authority or self.file,
            server_name=server_name,
        )


def write_secrets(path: Path, *secrets: str, mode: int = 0o600) -> Path:
    """A token or key file with a comment in it."""
    path.write_text("# made for a test\n\n" + "".join(f"{secret}\n" for secret in secrets))
    path.chmod(mode)
    return path
