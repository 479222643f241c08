"""The Serve applications: ``import_path: ssd_cluster.serve.app:build``, one target or one draft model each.

Annotations are not postponed here: Serve reads the type of ``build``'s argument to know what to validate.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import ray
from fastapi import FastAPI
from ray import serve
from ray.serve import Application
from ray.serve.config import RequestRouterConfig

from ssd_cluster.serve.args import (
    DRAFT_DEPLOYMENT,
    TARGET_DEPLOYMENT,
    AppArgs,
    AutoscalingSettings,
    DraftAppArgs,
    TargetAppArgs,
    changed_draft,
)
from ssd_cluster.serve.changes import ChangesInPlace
from ssd_cluster.serve.draft_service import DraftEndpoint, DraftService
from ssd_cluster.serve.drain import before_shutdown
from ssd_cluster.serve.http_host import require_protected_http
from ssd_cluster.serve.lessor import ServeLessor
from ssd_cluster.serve.loopback import keep_on_loopback
from ssd_cluster.serve.metrics_mirror import MirrorThread, RegistryMirror
from ssd_cluster.serve.policy import KEEP
from ssd_cluster.serve.ranks import launcher_of, placement_options
from ssd_cluster.serve.target_service import TargetService
from ssd_cluster.serve.view import cluster_view

HEALTH_PERIOD_S = 1.0
HEALTH_TIMEOUT_S = 10.0
SHUTDOWN_POLL_S = 0.2
ROUTING_STATS_S = 1.0
ROUTER = "ssd_cluster.serve.router:DraftRouter"
POLICY = "ssd_cluster.serve.policy:DraftPolicy"
_COMMON = {
    "health_check_period_s": HEALTH_PERIOD_S,
    "health_check_timeout_s": HEALTH_TIMEOUT_S,
    "graceful_shutdown_wait_loop_s": SHUTDOWN_POLL_S,
    "user_config": {},  # so that one which is taken out of a file is taken back
}
SPARE_REQUESTS = 16  # health, metrics and refusals have room although the engine is full
RETRY_AFTER_S = 1


def build(args: AppArgs) -> Application:
    """The application that ``args`` asks for; what Serve calls for a configuration file."""
    return build_with(args, num_replicas=1, user_config={})


def build_with(args: AppArgs, num_replicas: int, user_config: dict[str, Any]) -> Application:
    """``build`` with what a configuration file says under ``deployments``; Serve itself adds that when it deploys."""
    options: dict[str, Any] = {"user_config": user_config}
    bound: Application
    if args.target is not None:
        options["num_replicas"] = num_replicas
        bound = _target_deployment(args.target).options(**options).bind(args.target)
    else:
        assert args.draft is not None  # one of both, by validation
        if args.draft.autoscaling is None:
            options["num_replicas"] = num_replicas
        bound = _draft_deployment(args.draft).options(**options).bind(args.draft)
    return bound


class Target:
    """A target replica: the engine and, inside it, the HTTP ingress."""

    async def __init__(self, args: TargetAppArgs) -> None:  # type: ignore[misc]
        keep_on_loopback()
        require_protected_http(args.http)
        replica = str(serve.get_replica_context().replica_id.unique_id)
        lessor = None
        if args.draft_application is not None:
            lessor = ServeLessor(args.draft_application, args.draft_deployment)
        launcher = launcher_of(args.model, args.placement)
        self._changes = ChangesInPlace()
        self._service = await asyncio.to_thread(TargetService, args, replica, lessor, launcher)
        self._mirror = MirrorThread(RegistryMirror(self._service.metrics.registry, serve.metrics))

    def __serve_build_asgi_app__(self) -> FastAPI:
        return self._service.app(cluster_view)

    def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Called by Serve once at the start, and on a changed ``user_config``."""
        self._changes.take(lambda: self._service.reconfigure(user_config))

    def check_health(self) -> None:
        """Called by Serve; raises if this replica is to be replaced."""
        self._service.check()

    def status(self) -> dict[str, Any]:
        """State of the engine, through a handle."""
        return self._service.status() | {"refused": self._changes.refused}

    def record_routing_stats(self) -> dict[str, Any]:
        """What the cluster's view goes by."""
        return self.status()

    async def __del__(self) -> None:
        if hasattr(self, "_service"):
            await asyncio.to_thread(self._service.close)
            await asyncio.to_thread(self._mirror.close)


class Draft:
    """A draft replica: the engine on its own thread and core, reached over gRPC; no HTTP."""

    async def __init__(self, args: DraftAppArgs) -> None:  # type: ignore[misc]
        keep_on_loopback()
        self._args = self._base = args
        replica = str(serve.get_replica_context().replica_id.unique_id)
        address = ray.util.get_node_ip_address()
        self._service = await asyncio.to_thread(DraftService, args.engine_settings, address, replica)
        self._mirror = MirrorThread(RegistryMirror(self._service.metrics.registry, serve.metrics))
        self._changes = ChangesInPlace()
        before_shutdown(self._service.drain)

    def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Called by Serve once at the start, and on a changed ``user_config``."""
        self._changes.take(lambda: self._take(changed_draft(self._base, user_config)))

    def _take(self, args: DraftAppArgs) -> None:
        self._service.reweigh(args.target_weights)
        self._args = args

    async def lease(self, session: int, wish: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """A lease for a session; ``wish`` is for the router (``router.DraftRouter``)."""
        async with contextlib.aclosing(self._service.lease(session)) as items:
            async for item in items:
                yield item

    def record_routing_stats(self) -> dict[str, Any]:
        """What the router and the cluster's view go by."""
        return self.status()

    def record_autoscaling_stats(self) -> dict[str, float]:
        """What the policy goes by."""
        status = self._service.status()
        scaling = self._args.autoscaling
        if scaling is not None:
            status |= {"target_utilisation": scaling.target_utilisation, "late_share": scaling.late_share}
        return {name: float(status[name]) for name in KEEP if name in status}

    def endpoint(self) -> DraftEndpoint:
        """Where targets connect to."""
        return self._service.endpoint()

    def check_health(self) -> None:
        """Called by Serve; raises if this replica is to be replaced."""
        self._service.check()

    def status(self) -> dict[str, Any]:
        """State of the engine, through a handle."""
        return self._service.status() | {"refused": self._changes.refused}

    async def __del__(self) -> None:
        if hasattr(self, "_service"):
            await asyncio.to_thread(self._service.close)
            await asyncio.to_thread(self._mirror.close)


def _target_deployment(args: TargetAppArgs) -> Any:
    """The engine refuses with 429 first; Serve's own limits lie above it and only protect the replica."""
    limit = args.max_batch + args.max_waiting + SPARE_REQUESTS
    return serve.deployment(
        name=TARGET_DEPLOYMENT,
        max_ongoing_requests=limit,
        max_queued_requests=limit,
        backpressure_config={"status_code": 429, "retry_after_s": RETRY_AFTER_S},
        graceful_shutdown_timeout_s=args.graceful_shutdown_timeout_s,
        **_COMMON,
        **placement_options(args.model, args.placement, args.rank_placement),
    )(serve.ingress()(Target))


def _draft_deployment(args: DraftAppArgs) -> Any:
    scaling = args.autoscaling
    return serve.deployment(
        name=DRAFT_DEPLOYMENT,
        max_ongoing_requests=args.session_credit,  # one lease each
        autoscaling_config=_autoscaling(scaling) if scaling is not None else None,
        request_router_config=RequestRouterConfig(
            request_router_class=ROUTER, request_routing_stats_period_s=ROUTING_STATS_S
        ),
        graceful_shutdown_timeout_s=args.graceful_shutdown_timeout_s,
        **_COMMON,
        **placement_options(args.model, args.placement),
    )(Draft)


def _autoscaling(settings: AutoscalingSettings) -> dict[str, Any]:
    return {
        "min_replicas": settings.min_replicas,
        "max_replicas": settings.max_replicas,
        "upscale_delay_s": settings.upscale_delay_s,
        "downscale_delay_s": settings.downscale_delay_s,
        "metrics_interval_s": settings.look_back_s / 4,
        "look_back_period_s": settings.look_back_s,
        "policy": {"policy_function": POLICY},
    }
