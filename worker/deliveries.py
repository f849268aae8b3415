"""Webhooks: signed as Standard Webhooks has it, tried again with patience, and never sent into a private network.

A receiver's name is resolved once; every address it has must be public (or in a network the operator allows), and
the connection goes to that very address, so that a second answer of the DNS cannot redirect it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import ipaddress
import logging
import re
import socket
import time
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from sqlalchemy import Connection, Row, select, update

from converter.errors import OptionError
from worker.database.engine import Database, now
from worker.database.tables import deliveries
from worker.settings import Settings

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address

LOG: Final = logging.getLogger("narrowcast.webhooks")
_NAME: Final = re.compile(r"^(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.?$")
_TUNNELS: Final = tuple(ipaddress.ip_network(one) for one in ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "::/96"))
"""NAT64, 6to4 and the old IPv4-compatible addresses: an IPv4 address lies inside."""
BATCH: Final = 20
CLAIM_S: Final = 120
"""How long a delivery belongs to the process that took it."""


class ReceiverRefused(OptionError):
    """The address may not be called."""

    code = "RECEIVER_REFUSED"


@dataclass(frozen=True, slots=True)
class Target:
    """Where to connect, and under which name."""

    url: SplitResult
    address: str


def sign(secret: str, message_id: str, timestamp: int, body: str) -> str:
    """The value of ``webhook-signature``."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    digest = hmac.digest(key, f"{message_id}.{timestamp}.{body}".encode(), hashlib.sha256)
    return "v1," + base64.b64encode(digest).decode()


def check_receiver(url: str, networks: tuple[str, ...]) -> SplitResult:
    """What can be said without the network: scheme, name, and an address given as such.

    Raises:
        ReceiverRefused: naming what is wrong.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ReceiverRefused(f"the webhook's URL cannot be read: {error}") from error
    if parts.scheme not in ("https", "http") or not parts.hostname or "@" in parts.netloc or port == 0:
        raise ReceiverRefused("a webhook needs an https URL without user name")
    if parts.scheme == "http" and not networks:
        raise ReceiverRefused("a webhook needs https; plain http is for networks the operator has allowed")
    literal = _literal(parts.hostname)
    if literal is not None:
        _check_address(literal, parts, networks)
    elif len(parts.hostname) > 253 or not _NAME.match(parts.hostname):
        raise ReceiverRefused(f"{parts.hostname[:100]!r} is no name of a host")
    return parts


def _literal(host: str) -> _Address | None:
    """The address that is meant when the host is no name, in any spelling that a resolver takes; else None."""
    with contextlib.suppress(OSError):
        return ipaddress.IPv4Address(socket.inet_aton(host))  # 127.1, 0x7f000001, 2130706433
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host)
    return None


def resolve(url: str, networks: tuple[str, ...]) -> Target:
    """Resolve the receiver and check every address it has; raises ReceiverRefused or OSError."""
    parts = check_receiver(url, networks)
    assert parts.hostname is not None
    port = parts.port or (443 if parts.scheme == "https" else 80)
    found = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    addresses = [str(one[4][0]) for one in found]
    for address in addresses:
        _check_address(ipaddress.ip_address(address), parts, networks)
    return Target(parts, addresses[0])


def _check_address(address: _Address, parts: SplitResult, networks: tuple[str, ...]) -> None:
    mapped = getattr(address, "ipv4_mapped", None) or address
    allowed = any(mapped in ipaddress.ip_network(one) for one in networks)
    if allowed:
        return
    if not mapped.is_global or mapped.is_multicast or mapped.is_reserved or _is_tunnel(mapped):
        raise ReceiverRefused(f"{parts.hostname} is at {address}, which is no public address")
    if parts.scheme == "http":
        raise ReceiverRefused(f"{parts.hostname} is a public address and needs https")


def _is_tunnel(address: _Address) -> bool:
    """Whether a gateway may turn the address into another one, which nobody has looked at."""
    return any(address in one for one in _TUNNELS)


def due(connection: Connection) -> list[Row[Any]]:
    """Take deliveries that are due, for CLAIM_S."""
    names = select(deliveries.c.id).where(deliveries.c.state == "pending", deliveries.c.next_at <= now())
    ids = [row.id for row in connection.execute(names.order_by(deliveries.c.next_at).limit(BATCH))]
    taken = []
    for name in ids:
        mine = update(deliveries).where(
            deliveries.c.id == name, deliveries.c.state == "pending", deliveries.c.next_at <= now()
        )
        row = connection.execute(
            mine.values(next_at=now() + CLAIM_S, attempts=deliveries.c.attempts + 1).returning(*deliveries.c)
        ).one_or_none()
        taken += [row] if row is not None else []
    return taken


def deliver_due(database: Database, settings: Settings) -> int:
    """Make the deliveries that are due, side by side: a slow receiver holds up no other one; the number tried."""
    with database.write() as connection:
        rows = due(connection)
    for row, (status, error) in zip(rows, asyncio.run(_post_all(rows, settings)), strict=True):
        with database.write() as connection:
            _settle(connection, row, status, error, settings)
    return len(rows)


async def _post_all(rows: list[Row[Any]], settings: Settings) -> list[tuple[int | None, str]]:
    return await asyncio.gather(*(_try(row, settings) for row in rows))


def _settle(connection: Connection, row: Row[Any], status: int | None, error: str, settings: Settings) -> None:
    delays = settings.webhook_delays_s
    values: dict[str, Any] = {"status": status, "error": error[:500]}
    if status is not None and 200 <= status < 300:
        values |= {"state": "delivered", "finished_at": now()}
    elif row.attempts > len(delays) or status == 410:
        values |= {"state": "failed", "finished_at": now()}
    else:
        values |= {"next_at": now() + delays[row.attempts - 1]}
    connection.execute(update(deliveries).where(deliveries.c.id == row.id).values(**values))


async def _try(row: Row[Any], settings: Settings) -> tuple[int | None, str]:
    """The status, or None and why there is none: whatever goes wrong is this one receiver's affair."""
    import httpx2

    try:
        async with asyncio.timeout(settings.webhook_timeout_s):
            status = await _post(row, settings)
    except TimeoutError:
        return None, f"no answer within {settings.webhook_timeout_s:g} s"
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError, ReceiverRefused) as failure:
        LOG.info("delivery %s to %s: %s", row.id, row.url, failure)
        return None, f"{type(failure).__name__}: {failure}"
    return status, "" if 200 <= status < 300 else f"answered {status}"


async def _post(row: Row[Any], settings: Settings) -> int:
    """POST the delivery; the status.  Redirects are answers, never followed."""
    import httpx2

    timestamp = int(time.time())
    target = await asyncio.to_thread(resolve, row.url, settings.webhook_networks)
    parts = target.url
    host = f"[{target.address}]" if ":" in target.address else target.address
    netloc = f"{host}:{parts.port}" if parts.port else host
    headers = {
        "Host": parts.netloc,
        "Content-Type": "application/json",
        "User-Agent": "narrowcast-webhooks/1",
        "webhook-id": row.id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": sign(row.secret, row.id, timestamp, row.body),
    }
    async with (
        httpx2.AsyncClient(timeout=settings.webhook_timeout_s, follow_redirects=False, trust_env=False) as client,
        client.stream(
            "POST",
            parts._replace(netloc=netloc).geturl(),
            content=row.body,
            headers=headers,
            extensions={"sni_hostname": parts.hostname},
        ) as answer,
    ):
        return int(answer.status_code)
