"""``create_app``: the routes, what they share, and what starts and stops with the process.

The web process never imports torch, onnx or onnxruntime and never parses a model.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
from collections.abc import AsyncIterator
from typing import Any, Final
from urllib.parse import urlsplit

from fastapi import FastAPI

from api import errors
from api.auth import first_key
from api.envelope import LOOPBACK, Envelope
from api.follow import Follower
from api.limits import RateLimiter
from api.openapi import complete
from api.routes import artifacts, blobs, events, health, inputs, jobs, keys, models, uploads, webhooks
from api.service import GLANCE_MS, Service
from converter import __version__
from converter.errors import OptionError
from worker.client import Doorbell, Relay
from worker.database.engine import Database
from worker.database.schema import upgrade
from worker.settings import Settings
from worker.storage import LocalStorage
from worker.sweeper import Chores

LOG: Final = logging.getLogger("narrowcast.api")
DESCRIPTION: Final = (
    "Converts FP32 models to mixed FP16/BF16 and proves the result on a sample batch. Send files as uploads, "
    "make a model and inputs of them, submit a job, follow it, download model and report. Errors are "
    "`application/problem+json` with a stable `code`."
)
_PROBLEM: Final[dict[int | str, dict[str, Any]]] = {
    "default": {
        "description": "a problem document (RFC 9457)",
        "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
}


def create_app(settings: Settings, *, host: str = "127.0.0.1") -> FastAPI:
    """The app for a server that listens on ``host``.

    Raises:
        OptionError: ``auth=none`` together with an address that others can reach.
    """
    needs_key = _needs_key(settings, host)
    service = _service(settings, needs_key=needs_key)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        for folder in (settings.uploads_dir, settings.store_dir):
            folder.mkdir(parents=True, exist_ok=True)
        upgrade(service.database)
        if needs_key:
            _show_first_key(service)
        service.relay.start()
        service.follower.start()
        chores = Chores(settings, service.database, service.storage, service.doorbell)
        if settings.sweep_in_api:
            chores.start()
        try:
            yield
        finally:
            await service.follower.stop()
            chores.stop()
            service.relay.stop()
            service.doorbell.close()
            service.database.close()
            if service.glance is not None:
                service.glance.close()

    app = FastAPI(title="narrowcast", version=__version__, description=DESCRIPTION, lifespan=lifespan,
                  responses=_PROBLEM, docs_url="/docs", redoc_url=None)  # fmt: skip
    app.state.service = service
    errors.install(app)
    app.add_middleware(Envelope, hosts=service.allowed_hosts, settings=settings)
    for one in (blobs, uploads, models, inputs, jobs, events, artifacts, webhooks, keys, health):
        app.include_router(one.router)
    _describe(app)
    return app


def _service(settings: Settings, *, needs_key: bool) -> Service:
    database = Database(settings.database)
    doorbell = Doorbell(settings)
    named = frozenset() if needs_key else LOOPBACK | frozenset(settings.trusted_hosts) | _public_name(settings)
    glance = Database(settings.database, busy_timeout_ms=GLANCE_MS) if database.is_sqlite else None
    return Service(
        glance=glance,
        settings=settings,
        database=database,
        storage=LocalStorage(settings.store_dir),
        doorbell=doorbell,
        relay=Relay(database, doorbell),
        follower=Follower(database, settings.follow_s),
        limiter=RateLimiter(settings.rate_per_minute if needs_key else 0),
        needs_key=needs_key,
        allowed_hosts=named,
    )


def _public_name(settings: Settings) -> frozenset[str]:
    name = urlsplit(settings.public_url).hostname
    return frozenset() if name is None else frozenset({name})


def _needs_key(settings: Settings, host: str) -> bool:
    loopback = host == "localhost" or _is_loopback(host)
    if settings.auth == "none" and not loopback:
        raise OptionError(f"auth=none answers everybody, so it listens on loopback only, not on {host}")
    return settings.auth == "key" or (settings.auth == "auto" and not loopback)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _show_first_key(service: Service) -> None:
    key = service.write_now(first_key)
    if key is not None:
        print(f"first API key, shown once: {key}", flush=True)


def _describe(app: FastAPI) -> None:
    """Add what FastAPI does not know: the problem document, the key, and the body of POST /v1/jobs."""
    original = app.openapi

    def described() -> dict[str, object]:
        if app.openapi_schema is None:
            app.openapi_schema = complete(original())
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign]
