"""Configuration of the HTTP endpoint: where it listens and who may use it."""

from __future__ import annotations

from pydantic import Field, model_validator

from ssd_cluster.config_base import SecretFile, Settings


class HttpAccess(Settings):
    """Who may use a target's HTTP endpoint.

    ``api_keys_file``: one key per line; requests must carry one as ``Authorization: Bearer KEY``, except for /health.
    ``allow_open``: serve beyond this machine without keys.
    """

    api_keys_file: SecretFile | None = None
    allow_open: bool = False

    @model_validator(mode="after")
    def _open_or_not(self) -> HttpAccess:
        if self.allow_open and self.api_keys_file is not None:
            raise ValueError("allow_open says that no key is asked for: remove it, or remove api_keys_file")
        return self


class HttpSettings(Settings):
    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=1, le=65535)
