"""The API behind uvicorn."""

from __future__ import annotations

import gc
import logging
import os

import uvicorn

from api.app import create_app
from api.wire import Wire
from worker.client import BrokerUnavailable, Doorbell
from worker.settings import Settings, read_settings

KEEP_ALIVE_S = 75
SHUTDOWN_S = 10


def serve_http(settings: Settings, host: str, port: int) -> None:
    """Serve until told to stop.

    Raises:
        BrokerUnfit: the broker would lose queued jobs.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    doorbell = Doorbell(settings)
    try:
        doorbell.check_fit()
    except BrokerUnavailable as error:
        logging.getLogger("narrowcast.api").warning("%s; jobs are taken and wait", error)
    finally:
        doorbell.close()
    app = create_app(settings, host=host)
    app.openapi()
    # What is loaded by now lives as long as the process.  Walking it again and again is what makes a full collection
    # stop every request for a tenth of a second.
    gc.collect()
    gc.freeze()
    uvicorn.run(
        app,
        host=host,
        port=port,
        http=Wire,
        ws="none",
        loop="uvloop",
        access_log=False,
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=SHUTDOWN_S,
    )


def main() -> None:
    serve_http(read_settings(), os.environ["NARROWCAST_HOST"], int(os.environ["NARROWCAST_PORT"]))


if __name__ == "__main__":
    main()
