"""What a whole file contradicts itself in: credits against what targets ask for, both ends of the draft link, ports."""

from __future__ import annotations

from dataclasses import dataclass

from ssd_cluster.config import DraftSettings
from ssd_cluster.serve.args import Application, DraftAppArgs, ServeFile, TargetAppArgs
from ssd_cluster.types import Mode

RAY_WORKER_PORTS = range(10002, 20000)


@dataclass(frozen=True, slots=True)
class Findings:
    """``mistakes`` end a start; ``notes`` are worth knowing."""

    mistakes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __add__(self, other: Findings) -> Findings:
        return Findings(self.mistakes + other.mistakes, self.notes + other.notes)


@dataclass(frozen=True, slots=True)
class _User:
    """A target application that uses a pool."""

    app: Application
    target: TargetAppArgs
    weight: float

    @property
    def rows(self) -> int:
        """Rows that one of its sequences asks for."""
        return self.target.speculation.rows if self.target.mode is Mode.SSD and self.target.speculation.k else 0


def disagreements(file: ServeFile) -> Findings:
    """Everything that can be said without looking at models or machines."""
    found = _ports(file)
    for app in file.applications:
        settings = app.settings
        if isinstance(settings, DraftAppArgs):
            found += _pool(app, settings, _users(file, app))
        elif settings.in_process_draft is not None:
            found += _depth(app, settings, "in_process_draft", settings.in_process_draft)
    return found


def _users(file: ServeFile, pool: Application) -> list[_User]:
    draft = pool.settings
    weights = draft.target_weights if isinstance(draft, DraftAppArgs) else {}
    targets = [(app, app.settings) for app in file.targets]
    return [
        _User(app, target, weights.get(target.name, 1.0))
        for app, target in targets
        if isinstance(target, TargetAppArgs) and target.draft_application == pool.name
    ]


def _pool(pool: Application, draft: DraftAppArgs, users: list[_User]) -> Findings:
    found = Findings(notes=() if users else (f"{pool.name}: no target uses these drafts",))
    unknown = sorted(set(draft.target_weights) - {user.target.name for user in users})
    if unknown:
        line = f"{pool.name}: target_weights: no target that uses these drafts is called {' or '.join(unknown)}"
        found += Findings(mistakes=(line,))
    for user in users:
        found += _rows(pool, draft, user, users) + _depth(user.app, user.target, pool.name, draft)
        found += _link(pool, draft, user)
    return found + _capacity(pool, draft, users)


def _depth(app: Application, target: TargetAppArgs, where: str, draft: DraftSettings) -> Findings:
    if target.speculation.k <= draft.k_max:
        return Findings()
    line = f"{app.name}: speculation.k = {target.speculation.k} is more than k_max = {draft.k_max} of {where}"
    return Findings(mistakes=(f"{line}: lower k, or raise k_max",))


def _rows(pool: Application, draft: DraftAppArgs, user: _User, users: list[_User]) -> Findings:
    """One sequence must get its rows although every target is linked to the same replica."""
    total = sum(other.weight * other.app.num_replicas for other in users)
    limit = draft.limits.rows
    share = max(1, int(draft.row_credit * user.weight / total))
    if user.rows > (share if limit is None else min(share, limit)):
        if limit is not None and limit <= share:
            line = f"{user.app.name}: speculation.rows = {user.rows} is more than limits.rows = {limit} of {pool.name}"
            return Findings(mistakes=(f"{line}: lower rows, or raise limits.rows",))
        enough = -(-user.rows * total // user.weight)
        line = (
            f"{user.app.name}: speculation.rows = {user.rows} is more than its share of the row_credit of {pool.name}: "
            f"{share} of {draft.row_credit}; lower rows, or raise row_credit to {enough:g}"
        )
        return Findings(mistakes=(line,))
    return Findings()


def _link(pool: Application, draft: DraftAppArgs, user: _User) -> Findings:
    """What only one end of a link has."""
    here, there = user.target.link, draft.link
    wrong = []
    for key, mine, theirs in (
        ("tls", here.tls is not None, there.tls is not None),
        ("token_file", here.token_file is not None, there.token_file is not None),
    ):
        if mine != theirs:
            has, lacks = (user.app.name, pool.name) if mine else (pool.name, user.app.name)
            wrong.append(f"{has} sets link.{key} and {lacks} does not: a link needs it on both sides")
    if here.laws is not there.laws:
        wrong.append(f"link.laws is {here.laws.value!r} in {user.app.name} and {there.laws.value!r} in {pool.name}")
    return Findings(mistakes=tuple(wrong))


def _capacity(pool: Application, draft: DraftAppArgs, users: list[_User]) -> Findings:
    """Where a busy cluster has more sequences than the pool serves: allowed, and worth a line."""
    most = pool.most_replicas
    sequences = sum(user.target.max_batch * user.app.num_replicas for user in users)
    rows = sum(user.target.max_batch * user.app.num_replicas * user.rows for user in users)
    notes = []
    if sequences > most * draft.session_credit:
        notes.append(
            f"{pool.name}: up to {sequences} sequences run at once, and the pool serves {most * draft.session_credit} "
            f"({most} x session_credit); the others decode without a draft"
        )
    elif rows > most * draft.row_credit:
        notes.append(
            f"{pool.name}: full batches ask for {rows} rows per round, and the pool has {most * draft.row_credit} "
            f"({most} x row_credit); each sequence then gets fewer"
        )
    return Findings(notes=tuple(notes))


def _ports(file: ServeFile) -> Findings:
    """Fixed ports of drafts: once per node, not HTTP's, not one that Ray may give to its workers."""
    mistakes, notes = [], []
    taken: dict[tuple[int, str], str] = {}
    for app in file.applications:
        draft = app.args.draft
        if draft is None or draft.port == 0:
            continue
        most = app.most_replicas
        if draft.port == file.http_options.port:
            mistakes.append(f"{app.name}: port {draft.port} is that of http_options: choose another, or 0 for any")
        if most > 1 and draft.placement.max_replicas_per_node != 1:
            mistakes.append(
                f"{app.name}: {most} replicas cannot share port {draft.port} of a node: set "
                "placement.max_replicas_per_node: 1, or port: 0 for any free one"
            )
        key = (draft.port, str(sorted(draft.placement.label_selector.items())))
        if key in taken:
            mistakes.append(f"{app.name}: port {draft.port} is that of {taken[key]} too, and both may be on one node")
        taken.setdefault(key, app.name)
        if draft.port in RAY_WORKER_PORTS:
            notes.append(
                f"{app.name}: Ray gives ports {RAY_WORKER_PORTS.start} to {RAY_WORKER_PORTS.stop - 1} to its workers, "
                f"so port {draft.port} may be taken"
            )
    return Findings(tuple(mistakes), tuple(notes))
