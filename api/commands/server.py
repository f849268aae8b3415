"""``serve``, ``serve-api``, ``serve-worker``, ``serve-sweeper``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(pretty_exceptions_enable=False)

Host = Annotated[str, typer.Option(help="address to listen on; others than loopback need API keys")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="0: any free port")]
DataFolder = Annotated[Path | None, typer.Option("--data", help="folder of database, files and broker")]


def _use(folder: Path | None) -> None:
    if folder is not None:
        os.environ["NARROWCAST_DATA_DIR"] = str(folder.absolute())


@app.command("serve")
def serve(host: Host = "127.0.0.1", port: Port = 8000, data: DataFolder = None) -> None:
    """Run API, worker and broker together; nothing has to be installed or configured.

    Everything is kept in the data folder (./narrowcast-data).  Ctrl-C stops it all; open jobs go on at the next start.
    """
    from api.embedded.serve import serve_all
    from worker.settings import read_settings

    _use(data)
    raise typer.Exit(serve_all(read_settings(), host, port))


@app.command("serve-api")
def serve_api(host: Host = "127.0.0.1", port: Port = 8000, data: DataFolder = None) -> None:
    """Run the API alone; REDIS_URL and DATABASE_URL say where the rest is."""
    from api.server import serve_http
    from worker.settings import read_settings

    _use(data)
    serve_http(read_settings(), host, port)


@app.command("serve-worker")
def serve_worker(data: DataFolder = None) -> None:
    """Run a worker alone; REDIS_URL and DATABASE_URL say where the rest is."""
    import importlib

    from worker.settings import read_settings

    _use(data)
    settings = read_settings()
    module = "worker.app" if settings.redis_url else "worker.dispatcher"
    importlib.import_module(module).serve_worker(settings)


@app.command("serve-sweeper")
def serve_sweeper(data: DataFolder = None) -> None:
    """Run the sweeper alone: lost jobs, expired files, webhooks.  Set NARROWCAST_SWEEP_IN_API=false on the API."""
    from worker.sweeper import main

    _use(data)
    main()
