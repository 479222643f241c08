"""What a Serve configuration file of ours may say, validated before Ray is imported."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from ssd_cluster.config import DraftSettings, HttpAccess, HttpSettings, Settings, TargetSettings, distrust
from ssd_cluster.config_link import guarded, is_loopback
from ssd_cluster.errors import ConfigError
from ssd_cluster.serve.changes import changed_speculation, draft_update, target_changes
from ssd_cluster.serve.placement import Placement, unsuitable
from ssd_cluster.types import Mode

IMPORT_PATH: Final = "ssd_cluster.serve.app:build"
DRAFT_DEPLOYMENT = "draft"
TARGET_DEPLOYMENT = "target"
Name = Annotated[str, Field(min_length=1)]


class TargetAppArgs(TargetSettings):
    """A target application.

    ``draft_application``: the Serve application whose draft replicas this target uses over gRPC (mode ssd).
    ``in_process_draft``: a draft engine inside the target replica instead (mode sd, or ssd on one machine).
    ``graceful_shutdown_timeout_s``: how long a replica that is to stop may finish its requests.
    ``self_test``: answer a few prompts when the draft is ready, and warn if it is of no use.
    ``placement``: what each replica takes of a node, and which nodes it may run on. ``rank_placement``: where Ray puts
    the ranks of a model with ``tensor_parallel``, as in its placement groups.
    ``http``: API keys; they are asked for by the replica, whatever started Serve.
    """

    draft_application: Name | None = None
    draft_deployment: Name = DRAFT_DEPLOYMENT
    in_process_draft: DraftSettings | None = None
    graceful_shutdown_timeout_s: float = Field(default=300.0, ge=0)
    self_test: bool = True
    placement: Placement = Placement()
    rank_placement: Literal["PACK", "STRICT_PACK", "SPREAD", "STRICT_SPREAD"] = "PACK"
    http: HttpAccess = HttpAccess()

    @model_validator(mode="after")
    def _placement_fits_the_model(self) -> TargetAppArgs:
        if (reason := unsuitable(self.model, self.placement)) is not None:
            raise ValueError(reason)
        if self.model.tensor_parallel == 1 and self.rank_placement != "PACK":
            raise ValueError("rank_placement needs model.tensor_parallel above 1: one rank is placed like any replica")
        return self

    @model_validator(mode="after")
    def _draft_fits_mode(self) -> TargetAppArgs:
        remote, local = self.draft_application is not None, self.in_process_draft is not None
        if self.mode is Mode.AR and (remote or local):
            raise ValueError("mode ar uses no draft: remove draft_application and in_process_draft, or change mode")
        if self.mode is Mode.SD and (remote or not local):
            raise ValueError("mode sd needs in_process_draft and no draft_application")
        if self.mode is Mode.SSD and remote == local:
            raise ValueError("mode ssd needs either draft_application or in_process_draft")
        return self

    @model_validator(mode="after")
    def _shards_need_a_pool(self) -> TargetAppArgs:
        if self.speculation.shards > 1 and self.draft_application is None:
            raise ValueError(
                "speculation.shards above 1 needs draft_application: there is no second draft to share with"
            )
        return self

    @model_validator(mode="after")
    def _laws_come_from_a_trusted_draft(self) -> TargetAppArgs:
        reason = distrust(self, self.in_process_draft) if self.in_process_draft is not None else None
        if reason is not None:
            raise ValueError(reason)
        return self

    @model_validator(mode="after")
    def _link_is_guarded_where_there_is_one(self) -> TargetAppArgs:
        inside = self.in_process_draft
        if self.draft_application is None and (guarded(self.link) or (inside is not None and guarded(inside.link))):
            raise ValueError("link.tls and link.token_file need draft_application: no other draft is reached by a link")
        return self

    @property
    def engine_settings(self) -> TargetSettings:
        """The part that the engine knows."""
        return TargetSettings.model_validate({name: getattr(self, name) for name in TargetSettings.model_fields})


def unprotected(http: HttpAccess, host: str) -> str | None:
    """Why a target may not be served on this HTTP host, or None."""
    if is_loopback(host) or http.allow_open or http.api_keys_file is not None:
        return None
    return (
        f"the HTTP host {host!r} is not a loopback address and no API keys are set: anybody could use the model; set "
        "target.http.api_keys_file, or target.http.allow_open: true if something else guards it, or "
        "http_options.host: 127.0.0.1"
    )


class AutoscalingSettings(Settings):
    """When the pool of drafts grows and shrinks, between ``min_replicas`` (0 is allowed) and ``max_replicas``.

    ``target_utilisation``: share of the row and session credits that should be in use. ``late_share``: one replica more
    while a larger share of rounds than this gets no block in time. The delays are how long more or fewer replicas must
    have been wanted; ``look_back_s``: over what time load is averaged.
    """

    min_replicas: int = Field(default=1, ge=0)
    max_replicas: int = Field(ge=1)
    target_utilisation: float = Field(default=0.7, gt=0, le=1)
    late_share: float = Field(default=0.3, gt=0, le=1)
    upscale_delay_s: float = Field(default=1.0, ge=0)
    downscale_delay_s: float = Field(default=30.0, ge=0)
    look_back_s: float = Field(default=2.0, gt=0)

    @model_validator(mode="after")
    def _bounds_in_order(self) -> AutoscalingSettings:
        if self.min_replicas > self.max_replicas:
            raise ValueError(f"min_replicas ({self.min_replicas}) must not exceed max_replicas ({self.max_replicas})")
        return self


class DraftAppArgs(DraftSettings):
    """A draft application.

    ``session_credit`` is also how many leases Serve admits per replica. ``autoscaling``: None keeps the number of
    replicas that ``deployments`` says. ``graceful_shutdown_timeout_s``: how long a replica that is to go waits until
    its sessions have moved to other replicas. ``placement``: what a replica takes of a node, and where it may run.
    """

    autoscaling: AutoscalingSettings | None = None
    graceful_shutdown_timeout_s: float = Field(default=60.0, ge=0)
    placement: Placement = Placement()

    @model_validator(mode="after")
    def _placement_fits_the_model(self) -> DraftAppArgs:
        if (reason := unsuitable(self.model, self.placement)) is not None:
            raise ValueError(reason)
        return self

    @property
    def engine_settings(self) -> DraftSettings:
        """The part that the engine knows."""
        return DraftSettings.model_validate({name: getattr(self, name) for name in DraftSettings.model_fields})


def changed_draft(args: DraftAppArgs, user_config: dict[str, Any]) -> DraftAppArgs:
    """The arguments of drafts with a ``user_config`` in them.

    Raises:
        ConfigError: it does not fit.
    """
    return args.model_copy(update=draft_update(user_config, args.autoscaling))


class AppArgs(Settings):
    """Arguments of ``ssd_cluster.serve.app:build``: exactly one of ``target`` and ``draft``."""

    target: TargetAppArgs | None = None
    draft: DraftAppArgs | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> AppArgs:
        if (self.target is None) == (self.draft is None):
            raise ValueError("exactly one of target and draft must be given")
        return self


class DeploymentOptions(Settings):
    """One entry of an application's ``deployments``: what Serve changes in place, without new replicas for old ones.

    ``num_replicas``: each loads the model; a replica that is to go finishes its streams first. ``user_config``: what
    running replicas take over (``serve.changes``).
    """

    name: Literal["target", "draft"]
    num_replicas: int = Field(default=1, ge=1)
    user_config: dict[str, Any] = Field(default={})


class Application(Settings):
    """One entry of ``applications``."""

    name: Name
    import_path: Literal["ssd_cluster.serve.app:build"] = IMPORT_PATH
    route_prefix: str | None = "/"
    args: AppArgs
    deployments: tuple[DeploymentOptions, ...] = Field(default=(), max_length=1)

    @property
    def num_replicas(self) -> int:
        return self.deployments[0].num_replicas if self.deployments else 1

    @property
    def initial_replicas(self) -> int:
        """How many replicas there are before any load; those of a pool that scales come with it."""
        scaling = self.args.draft.autoscaling if self.args.draft is not None else None
        return self.num_replicas if scaling is None else scaling.min_replicas

    @property
    def most_replicas(self) -> int:
        """How many there may be."""
        scaling = self.args.draft.autoscaling if self.args.draft is not None else None
        return self.num_replicas if scaling is None else scaling.max_replicas

    @model_validator(mode="after")
    def _options_are_for_its_deployment(self) -> Application:
        wanted = TARGET_DEPLOYMENT if self.args.target is not None else DRAFT_DEPLOYMENT
        for options in self.deployments:
            if options.name != wanted:
                raise ValueError(f"deployments: this application has the deployment {wanted!r}, not {options.name!r}")
            scales = self.args.draft is not None and self.args.draft.autoscaling is not None
            if scales and "num_replicas" in options.model_fields_set:
                raise ValueError("deployments: num_replicas fixes what draft.autoscaling changes: remove one of them")
        return self

    @property
    def user_config(self) -> dict[str, Any]:
        return self.deployments[0].user_config if self.deployments else {}

    @property
    def settings(self) -> TargetAppArgs | DraftAppArgs:
        """The arguments with ``user_config`` in them: what its replicas go by.

        Raises:
            ConfigError: ``user_config`` does not fit; not after validation.
        """
        target, draft = self.args.target, self.args.draft
        if target is not None:
            speculation = changed_speculation(target, target_changes(self.user_config))
            return target.model_copy(update={"speculation": speculation})
        assert draft is not None  # one of both, by validation
        return changed_draft(draft, self.user_config)

    @model_validator(mode="after")
    def _changes_fit(self) -> Application:
        try:
            self.settings  # noqa: B018
        except ConfigError as error:
            raise ValueError(f"deployments: {error.message}") from None
        return self

    @model_validator(mode="after")
    def _route_fits(self) -> Application:
        if self.args.draft is not None and self.route_prefix is not None:
            raise ValueError("a draft application has no HTTP: set route_prefix to null")
        if self.args.target is not None and not (self.route_prefix or "").startswith("/"):
            raise ValueError("route_prefix of a target application must start with /")
        return self


class ServeFile(Settings):
    """A Serve configuration file that ``ssd-cluster serve`` runs on this machine and ``serve deploy`` on a cluster.

    ``proxy_location``: which nodes answer HTTP. By default all that have a replica, and the head.
    """

    proxy_location: Literal["EveryNode", "HeadOnly"] = "EveryNode"
    http_options: HttpSettings = HttpSettings()
    applications: tuple[Application, ...]

    @model_validator(mode="after")
    def _applications_fit_together(self) -> ServeFile:
        _require_unique("name", [app.name for app in self.applications])
        _require_unique("route_prefix", [app.route_prefix for app in self.targets])
        if not self.targets:
            raise ValueError("applications: none of them is a target")
        drafts = {app.name: app.args.draft for app in self.applications if app.args.draft is not None}
        for app in self.targets:
            reason = unprotected(app.args.target.http, self.http_options.host) if app.args.target else None
            if reason is not None:
                raise ValueError(f"applications: {app.name}: {reason}")
            wanted = app.args.target.draft_application if app.args.target else None
            if wanted is not None and wanted not in drafts:
                raise ValueError(
                    f"applications: {app.name} uses draft_application {wanted!r}, which is not in this file"
                )
            reason = distrust(app.args.target, drafts[wanted]) if app.args.target and wanted else None
            if reason is not None:
                raise ValueError(f"applications: {app.name}: {reason}")
        return self

    @property
    def targets(self) -> tuple[Application, ...]:
        return tuple(app for app in self.applications if app.args.target is not None)


def _require_unique(key: str, values: list[str] | list[str | None]) -> None:
    twice = sorted({str(v) for v in values if values.count(v) > 1})  # type: ignore[arg-type]
    if twice:
        raise ValueError(f"applications: {key} {', '.join(twice)} is used more than once")
