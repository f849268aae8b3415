"""The Celery worker: its app, and what a pool process sets up for itself."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from typing import Final

from celery import Celery, signals

from worker.broker import broker_options
from worker.client import BrokerUnavailable, Doorbell
from worker.contract import RUN_TASK
from worker.database.engine import Database
from worker.database.schema import wait_for_schema
from worker.processes import adopt_orphans, die_with_parent
from worker.pulse import pulse_step
from worker.settings import Settings, read_settings
from worker.tasks import Bench, run

LOG: Final = logging.getLogger("narrowcast.worker")
SCHEMA_WAIT_S: Final = 60


def create_app(settings: Settings) -> Celery:
    """The app with its one task; nothing is connected yet."""
    app = Celery("narrowcast", set_as_current=False)
    app.conf.update(broker_options(settings))
    bench = Bench(settings)

    def run_one(job_id: str, *_: object, **__: object) -> None:
        run(bench, job_id)

    app.task(name=RUN_TASK)(run_one)
    app.steps["consumer"].add(pulse_step(settings))
    signals.setup_logging.connect(lambda **_: None, weak=False)  # ours is set up already
    signals.worker_process_init.connect(lambda **_: _prepare_pool_process(bench), weak=False)
    signals.worker_process_shutdown.connect(lambda **_: bench.close(), weak=False)
    return app


def serve_worker(settings: Settings) -> None:
    """Run a worker until it is told to stop; waits for the API to bring the schema up."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    os.environ.setdefault("REMAP_SIGTERM", "SIGQUIT")
    database = Database(settings.database, pooled=False)
    wait_for_schema(database, SCHEMA_WAIT_S)
    database.close()
    _check_broker(settings)
    settings.scratch_dir.mkdir(parents=True, exist_ok=True)
    app = create_app(settings)
    app.worker_main(
        [
            "worker",
            f"--hostname={worker_name(settings)}",
            f"--queues={settings.device}",
            "--without-gossip",
            "--without-mingle",
            "--loglevel=WARNING",
        ]
    )


def _check_broker(settings: Settings) -> None:
    doorbell = Doorbell(settings)
    try:
        doorbell.check_fit()
    except BrokerUnavailable as error:
        LOG.warning("%s; waiting for it", error)
    finally:
        doorbell.close()


def worker_name(settings: Settings) -> str:
    return f"{settings.device}-{os.getpid()}@{socket.gethostname()}"


def _prepare_pool_process(bench: Bench) -> None:
    """In the pool process: end with the worker, end politely (a running job is given back), start the engine."""
    die_with_parent(os.getppid())
    adopt_orphans()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    bench.open()


def main() -> None:
    serve_worker(read_settings())
