"""What can be known to go wrong before anything starts."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ssd_cluster.config import DraftSettings, ModelSettings
from ssd_cluster.errors import ConfigError, StartupError
from ssd_cluster.serve.args import Application, ServeFile


def models_of(app: Application) -> list[tuple[str, ModelSettings]]:
    """(place in the file, settings) of every model an application loads."""
    target, draft = app.args.target, app.args.draft
    found: list[tuple[str, ModelSettings]] = []
    if target is not None:
        found.append((f"{app.name}: target.model", target.model))
        if target.in_process_draft is not None:
            found.append((f"{app.name}: target.in_process_draft.model", target.in_process_draft.model))
    if isinstance(draft, DraftSettings):
        found.append((f"{app.name}: draft.model", draft.model))
    return found


def pairs_of(file: ServeFile) -> list[tuple[str, str]]:
    """(target, draft) paths of the models that work together."""
    drafts = {app.name: app.args.draft.model.path for app in file.applications if app.args.draft is not None}
    found: list[tuple[str, str]] = []
    for app in file.targets:
        target = app.args.target
        if target is not None and target.in_process_draft is not None:
            found.append((target.model.path, target.in_process_draft.model.path))
        if target is not None and target.draft_application is not None:
            found.append((target.model.path, drafts[target.draft_application]))
    return found


def usable_cores() -> set[int]:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def require_cores(file: ServeFile, usable: set[int]) -> None:
    """Every pinned core must exist and be given to this process.

    Raises:
        StartupError: names the model and its missing cores.
    """
    for app in file.applications:
        for place, model in models_of(app):
            missing = sorted(set(model.cores or ()) - usable)
            if missing:
                raise StartupError(
                    f"too few cores: {place}.cores wants {_listed(missing)}, but this machine gives "
                    f"{_listed(sorted(usable))}; change cores in the configuration file"
                )


def require_split(place: str, model: ModelSettings) -> None:
    """A model must be such that it can be divided among its ranks.

    Raises:
        StartupError: names the model and the numbers of ranks that it can have.
    """
    if model.tensor_parallel == 1:
        return
    from ssd_cluster.model.checkpoint import open_checkpoint, read_json, resolve_checkpoint
    from ssd_cluster.model.decoder_config import parse_config
    from ssd_cluster.model.parallel.sharding import shard_of

    found = resolve_checkpoint(model.path, weights=False)
    config = open_checkpoint(found).config if found.is_file() else read_json(found / "config.json")
    try:
        shard_of(parse_config(config), 0, model.tensor_parallel)
    except ConfigError as error:
        raise StartupError(f"{place}: {error.message}") from None


def _listed(cores: list[int]) -> str:
    return ", ".join(map(str, cores))


def require_free_port(host: str, port: int) -> None:
    """Nothing may listen on the port yet.

    Raises:
        StartupError: the port is taken, may not be used, or the host is not ours.
    """
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, proto) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as error:
        reason = error.strerror or str(error)
        raise StartupError(
            f"port {port} on {host} cannot be used ({reason}); choose another with PORT= or --port"
        ) from None


@contextmanager
def only_instance(path: Path) -> Iterator[None]:
    """Hold the lock file ``path``, which names our process; it vanishes with us, even if we are killed.

    Raises:
        StartupError: another process holds it, or the folder cannot be written.
    """
    descriptor = _locked(path)
    try:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _locked(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
                os.close(descriptor)
                raise StartupError(f"ssd-cluster serve is already running (pid {holder}); stop it first") from None
            if _is_file(path, descriptor):
                return descriptor
            os.close(descriptor)  # its former holder has just removed it: lock the new file
    except OSError as error:
        raise StartupError(
            f"cannot write {path} ({error.strerror}); set SSD_CLUSTER_CACHE to a folder of yours"
        ) from None


def _is_file(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
