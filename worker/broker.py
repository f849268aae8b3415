"""How Celery talks to Redis: every setting with the failure it prevents (decision 0003)."""

from __future__ import annotations

from typing import Any, Final

from worker.settings import Settings

KEY_PREFIX: Final = "narrowcast:"
TASK_ROOM_S: Final = 120
"""What Celery's own time limit leaves a run beyond its deadline; the real deadline is the supervisor's."""


def broker_options(settings: Settings) -> dict[str, Any]:
    """Celery configuration of senders and workers alike."""
    return {
        "broker_url": _celery_url(settings.redis_url),
        "broker_transport_options": _transport(settings),
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "broker_connection_timeout": 5,
        "result_backend": None,
        "task_ignore_result": True,
        "task_serializer": "json",
        "accept_content": ["json"],
        "task_acks_late": True,
        "task_acks_on_failure": True,
        "task_acks_on_timeout": True,
        "task_reject_on_worker_lost": False,
        "task_retry_on_worker_lost": False,
        "task_track_started": False,
        "task_time_limit": settings.max_deadline_s + TASK_ROOM_S + settings.publish_retry_s,
        "task_create_missing_queues": True,
        "task_default_queue": settings.device,
        "worker_prefetch_multiplier": 1,
        "worker_disable_prefetch": True,
        "worker_concurrency": settings.concurrency,
        "worker_max_tasks_per_child": 100,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "worker_soft_shutdown_timeout": settings.soft_shutdown_s,
        "worker_enable_soft_shutdown_on_idle": False,
        "worker_enable_remote_control": False,
        "worker_send_task_events": False,
        "worker_hijack_root_logger": False,
        "enable_utc": True,
    }


def _transport(settings: Settings) -> dict[str, Any]:
    return {
        "visibility_timeout": settings.visibility_timeout_s,
        "global_keyprefix": KEY_PREFIX,
        "unacked_restore_interval": 10,
        "unacked_restore_throttle": 1,
        "socket_timeout": 30,
        "socket_connect_timeout": 5,
        "socket_keepalive": True,
        "retry_on_timeout": True,
        "health_check_interval": 25,
        "max_retries": 1,
        "interval_start": 0.1,
        "interval_step": 0.2,
    }


def _celery_url(url: str) -> str:
    """A unix socket is spelled ``unix://`` for Redis and ``redis+socket://`` for Celery."""
    return url.replace("unix://", "redis+socket://", 1) if url.startswith("unix://") else url
