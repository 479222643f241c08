"""Configuration of the draft link: deadlines, who may use it, and what one target may ask of a draft."""

from __future__ import annotations

import ipaddress
import os
from contextlib import suppress
from enum import StrEnum
from typing import Annotated

from pydantic import Field, field_validator, model_validator

from ssd_cluster.config_base import SecretFile, Settings


def is_loopback(host: str) -> bool:
    """Whether an address, or the name ``localhost``, can only be this machine."""
    if host == "localhost":
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    return False


class TlsSettings(Settings):
    """Mutual TLS: both sides show a certificate of one authority. All three are PEM files.

    ``certificate``: of this replica, with intermediate ones behind it; ``key``: its private key, without a passphrase;
    ``authority``: the certificates that sign those of all peers, and nothing else: whatever they sign is let in.
    ``server_name``: for a target, the DNS name that the draft's certificate must carry; None: the host of its endpoint.
    """

    certificate: SecretFile
    key: SecretFile
    authority: SecretFile
    server_name: Annotated[str, Field(min_length=1, max_length=253)] | None = None


class LawTransport(StrEnum):
    """How draft laws travel: in frames of the gRPC stream, or as tensors beside it."""

    GRPC = "grpc"
    TENSOR = "tensor"


class TensorBackend(StrEnum):
    """What moves tensors between processes: gloo from CPU to CPU, NCCL from GPU to GPU."""

    GLOO = "gloo"
    NCCL = "nccl"


class TensorSettings(Settings):
    """The tensor channel (torch.distributed, one private pair of ranks per target and draft); the same on both sides.

    It is neither encrypted nor authenticated, whatever ``link.tls`` says.

    ``address``: IP address of this machine on which gloo listens; the other side must reach it. ``timeout_s``: longest
    rendezvous and longest transfer of one law, on threads of their own; a round waits for neither. ``retry_s``: pause
    before a broken channel is made again, doubled up to 16 times as long. ``trusted_network``: allow an address beyond
    this machine, and NCCL, which chooses its own interface.
    """

    backend: TensorBackend = TensorBackend.GLOO
    address: str = "127.0.0.1"
    timeout_s: float = Field(default=2.0, gt=0)
    retry_s: float = Field(default=1.0, gt=0)
    trusted_network: bool = False

    @field_validator("address")
    @classmethod
    def _an_address_of_one_interface(cls, value: str) -> str:
        with suppress(ValueError):
            if not ipaddress.ip_address(value).is_unspecified:
                return value
        raise ValueError(f"{value!r} is not the IP address of one interface")

    @model_validator(mode="after")
    def _plaintext_on_trusted_networks_only(self) -> TensorSettings:
        if self.trusted_network or (self.backend is TensorBackend.GLOO and is_loopback(self.address)):
            return self
        what = f"address {self.address!r}" if self.backend is TensorBackend.GLOO else "backend 'nccl'"
        raise ValueError(
            f"{what} may carry draft laws over the network, unencrypted and open to whoever connects: set "
            "trusted_network: true if only trusted machines are on it, or use backend gloo and a loopback address"
        )


class LinkSettings(Settings):
    """Deadlines and limits of the draft link, and how its two ends know each other.

    ``tls`` and ``token_file`` are the same on both sides; beyond this machine at least one of them is needed. A draft
    accepts every token in its file (one per line), a target presents the first one in its own. ``laws``: how the laws
    of kinds sparse and dense travel; ``tensor`` on both sides, or they travel over gRPC.
    """

    connect_timeout_s: float = Field(default=5.0, gt=0)
    ping_interval_s: float = Field(default=2.0, gt=0)
    session_ttl_s: float = Field(default=10.0, gt=0)
    frame_bytes: int = Field(default=4 * 1024 * 1024, ge=4096)
    send_queue: int = Field(default=1024, ge=1)
    tls: TlsSettings | None = None
    token_file: SecretFile | None = None
    laws: LawTransport = LawTransport.GRPC
    tensor: TensorSettings = TensorSettings()

    @property
    def law_limit(self) -> int | None:
        """Most bytes of a law; None: any number, since it travels beside the frames."""
        return self.frame_bytes if self.laws is LawTransport.GRPC else None

    @model_validator(mode="after")
    def _tensor_settings_are_used(self) -> LinkSettings:
        if self.laws is LawTransport.GRPC and self.tensor != TensorSettings():
            raise ValueError("tensor is set, but laws travel over grpc: set laws: tensor, or remove tensor")
        return self


class TargetLimits(Settings):
    """What a draft lets one target ask for, below the credits that all targets share.

    ``sessions``, ``rows``: None: no less than its share of ``session_credit`` and ``row_credit``. ``tokens``: most
    committed tokens of its sessions together; None: as many as its sessions' contexts hold. ``opens_per_s``: sessions
    opened, in the long run; ``opens_burst``: at once.
    """

    sessions: int | None = Field(default=None, ge=1)
    rows: int | None = Field(default=None, ge=1)
    tokens: int | None = Field(default=None, ge=1)
    opens_per_s: float = Field(default=200.0, gt=0)
    opens_burst: int = Field(default=400, ge=1)


def keep_nccl_from_ending_the_process() -> None:
    """Before the first NCCL group: by default its watchdog ends a process whose peer is gone; we have deadlines."""
    for name in ("ASYNC_ERROR_HANDLING", "ENABLE_MONITORING", "DUMP_ON_TIMEOUT"):
        os.environ.setdefault(f"TORCH_NCCL_{name}", "0")


def exposed(host: str, link: LinkSettings, key: str) -> str | None:
    """Why the draft link may not use this host, or None: beyond this machine it needs TLS or a token."""
    if is_loopback(host) or guarded(link):
        return None
    return (
        f"{key} = {host!r} is not a loopback address, and the draft link has neither TLS nor a token: prompts would "
        "travel in the clear, and anybody could use the draft; set link.tls (certificate, key, authority) or "
        f"link.token_file on targets and drafts, or set {key} to 127.0.0.1"
    )


def unfit_for_draft(host: str, link: LinkSettings) -> str | None:
    """Why a draft cannot be run with these settings, or None."""
    if link.tls is not None and link.tls.server_name is not None:
        return "link.tls.server_name is for targets: it names the certificate that they expect of a draft"
    return exposed(host, link, "host")


def guarded(link: LinkSettings) -> bool:
    """Whether anything is set that only matters between processes."""
    return link.tls is not None or link.token_file is not None
