"""Layers, recipes, storage, settings, schema, broker options: one promise each."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import numpy as np
import pytest

from converter.errors import BatchError, EnvironmentFailure, NarrowcastError, OptionError
from tests.service_kit import Desk
from worker.broker import broker_options
from worker.client import BrokerUnavailable, Doorbell, Relay
from worker.database.engine import Database, DatabaseUnavailable
from worker.database.schema import upgrade, wait_for_schema
from worker.database.tables import metadata
from worker.layers import read_layers, write_layers
from worker.problems import PROBLEMS, problem
from worker.recipes import write_batch
from worker.settings import Settings, read_settings
from worker.storage import LocalStorage


class TestLayers:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        errors = [0.5, None, 0.1, 0.5, 0.0]
        layers = [
            {"value": f"v{n}", "node": f"block/{n}", "op_type": "Add", "rel_l2_error": error, "local": None}
            for n, error in enumerate(errors)
        ]
        write_layers(layers, tmp_path / "layers.sqlite")
        return tmp_path / "layers.sqlite"

    @pytest.mark.parametrize(
        ("sort", "descending", "order"),
        [
            ("position", False, [0, 1, 2, 3, 4]),
            ("rel_l2_error", False, [4, 2, 0, 3, 1]),
            ("rel_l2_error", True, [0, 3, 2, 4, 1]),
            ("node", True, [4, 3, 2, 1, 0]),
        ],
    )
    @pytest.mark.parametrize("size", [1, 2, 5])
    def test_pages_join_up_in_order(self, path: Path, sort: str, descending: bool, order: list[int], size: int) -> None:
        seen: list[int] = []
        after = None
        while rows := read_layers(path, sort, descending, after, size, {}):
            seen += [row[1] for row in rows]
            after = (rows[-1][0], rows[-1][1])
        assert seen == order

    def test_filters_look_for_parts_of_names(self, path: Path) -> None:
        assert [row[1] for row in read_layers(path, "position", False, None, 9, {"node": "ck/3"})] == [3]

    @pytest.mark.parametrize("column", ["body", "position; DROP TABLE layers"])
    def test_other_columns_are_refused(self, path: Path, column: str) -> None:
        with pytest.raises(ValueError, match="no column"):
            read_layers(path, column, False, None, 9, {})


class TestRecipes:
    def batch(self, tmp_path: Path, tensors: dict[str, dict[str, object]], seed: int = 0) -> bytes:
        write_batch({"tensors": tensors, "seed": seed}, tmp_path / "b.npz")
        return (tmp_path / "b.npz").read_bytes()

    def test_numbers_follow_from_the_recipe(self, tmp_path: Path) -> None:
        tensors: dict[str, dict[str, object]] = {
            "a": {"shape": [2, 3], "dtype": "float32"},
            "b": {"shape": [50], "dtype": "int64", "distribution": "integers", "low": 1, "high": 3},
            "c": {"shape": [4], "dtype": "float64", "distribution": "uniform", "low": 5, "high": 6},
            "d": {"shape": [2], "dtype": "bool", "distribution": "ones"},
            "e": {"shape": [2], "dtype": "float16", "distribution": "zeros"},
        }
        first = np.load(io.BytesIO(self.batch(tmp_path, tensors)))
        again = np.load(io.BytesIO(self.batch(tmp_path, dict(reversed(tensors.items())))))
        assert all(np.array_equal(first[name], again[name]) for name in tensors)
        assert set(first["b"]) == {1, 2, 3}
        assert ((first["c"] >= 5) & (first["c"] < 6)).all()
        assert (first["a"].dtype, first["a"].shape, first["d"].all(), first["e"].any()) == (
            np.float32,
            (2, 3),
            True,
            False,
        )
        other = np.load(io.BytesIO(self.batch(tmp_path, tensors, seed=1)))
        assert not np.array_equal(first["a"], other["a"])

    def test_a_huge_recipe_is_refused_before_it_is_made(self, tmp_path: Path) -> None:
        with pytest.raises(BatchError, match="send a file instead"):
            self.batch(tmp_path, {"a": {"shape": [2**20, 2**20], "dtype": "float32"}})

    def test_an_unknown_distribution_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(BatchError, match="'cauchy' is no distribution"):
            self.batch(tmp_path, {"a": {"shape": [1], "dtype": "float32", "distribution": "cauchy"}})


class TestStorage:
    def test_a_fetched_file_is_an_inode_of_its_own(self, tmp_path: Path) -> None:
        """What a run gets must not be what the store keeps, nor reachable under a second name."""
        storage = LocalStorage(tmp_path / "store")
        source = tmp_path / "source"
        source.write_bytes(b"content" * 1000)
        storage.put(source, "blobs/ab/x")
        seen: list[int] = []
        storage.fetch("blobs/ab/x", tmp_path / "copy", seen.append)
        (tmp_path / "copy").write_bytes(b"changed")
        with storage.open("blobs/ab/x") as file:
            assert file.read() == b"content" * 1000
        assert (tmp_path / "copy").stat().st_nlink == 1
        assert seen[-1] == 7000

    @pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", ""])
    def test_names_stay_below_the_root(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(ValueError, match="no name of an object"):
            LocalStorage(tmp_path).open(name)

    def test_a_set_appears_at_once_and_is_taken(self, tmp_path: Path) -> None:
        storage = LocalStorage(tmp_path / "store")
        folder = tmp_path / "set"
        folder.mkdir()
        (folder / "a").write_bytes(b"1")
        storage.put_set(folder, "artifacts/job/1")
        assert not folder.exists()
        assert [name for name, _ in storage.sets("artifacts")] == ["artifacts/job/1"]
        storage.delete("artifacts/job/1")
        storage.delete("artifacts/job/1")
        assert list(storage.sets("artifacts")) == []

    def test_a_set_from_another_device_is_copied_aside_first(self, tmp_path: Path) -> None:
        shm = Path("/dev/shm") / f"nc-{tmp_path.name}"
        if not shm.parent.is_dir() or shm.parent.stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("needs two file systems")
        shm.mkdir()
        (shm / "a").write_bytes(b"1" * 100_000)
        LocalStorage(tmp_path / "store").put_set(shm, "artifacts/job/2")
        assert (tmp_path / "store/artifacts/job/2/a").stat().st_size == 100_000
        assert not shm.exists()
        assert list((tmp_path / "store/aside").iterdir()) == []


class TestSettings:
    def test_names_without_prefix_are_understood(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("REDIS_URL", "redis://r:1")
        monkeypatch.setenv("DATABASE_URL", "postgresql://d/x")
        monkeypatch.setenv("NARROWCAST_RETRY_DELAYS_S", "[1, 2.5]")
        monkeypatch.setenv("NARROWCAST_WEBHOOK_NETWORKS", "10.0.0.0/8, 127.0.0.0/8")
        settings = read_settings()
        assert (settings.redis_url, settings.database) == ("redis://r:1", "postgresql://d/x")
        assert settings.retry_delays_s == (1.0, 2.5)
        assert settings.webhook_networks == ("10.0.0.0/8", "127.0.0.0/8")

    def test_a_wrong_value_names_its_setting(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NARROWCAST_LEASE_S", "soon")
        with pytest.raises(OptionError, match="lease_s"):
            read_settings()

    def test_every_setting_says_what_it_is(self) -> None:
        assert [name for name, one in Settings.model_fields.items() if not one.description] == []

    def test_every_setting_is_documented(self) -> None:
        page = Path("docs/service-settings.md").read_text()
        assert [name for name in Settings.model_fields if f"`NARROWCAST_{name.upper()}`" not in page] == []


class TestSchema:
    def test_the_migrations_make_the_tables(self, desk: Desk) -> None:
        from alembic.autogenerate import compare_metadata
        from alembic.migration import MigrationContext

        with desk.database.read() as connection:
            assert compare_metadata(MigrationContext.configure(connection), metadata) == []

    def test_upgrading_again_changes_nothing(self, desk: Desk) -> None:
        job = desk.job()
        upgrade(desk.database)
        assert desk.row(job).state == "QUEUED"
        wait_for_schema(desk.database, 1.0)

    def test_a_worker_does_not_start_on_an_old_schema(self, tmp_path: Path) -> None:
        database = Database(f"sqlite:///{tmp_path / 'empty.db'}")
        with pytest.raises(DatabaseUnavailable, match="start the API"):
            wait_for_schema(database, 0.3)
        database.close()

    def test_a_missing_database_server_is_an_environment_failure(self) -> None:
        database = Database("postgresql://nobody@127.0.0.1:1/none", pooled=False)
        with pytest.raises(DatabaseUnavailable, match="does not answer"), database.read():
            pass


class TestProblems:
    def test_every_exception_of_ours_has_its_code_in_the_table_and_for_itself(self) -> None:
        import api.client.errors
        import worker.deliveries

        assert worker.deliveries.ReceiverRefused.code == "RECEIVER_REFUSED"
        client_side = {name for name, one in vars(api.client.errors).items() if isinstance(one, type)}
        kinds = list(_below(NarrowcastError))
        codes = [kind.code for kind in kinds if kind.__module__.split(".")[0] in ("converter", "worker", "api")]
        assert len(codes) == len(set(codes)), (
            "two exceptions with one code cannot be told apart behind a process border"
        )
        served = [kind.code for kind in kinds if kind.__name__ not in client_side]
        assert [code for code in served if code not in PROBLEMS] == []

    def test_an_unknown_code_reads_as_a_bug(self) -> None:
        assert problem("NO_SUCH_CODE").code == "INTERNAL"

    def test_every_code_is_documented(self) -> None:
        page = Path("docs/errors.md").read_text()
        assert [code for code in PROBLEMS if f"| `{code}` |" not in page] == []


def _below(kind: type[NarrowcastError]) -> list[type[NarrowcastError]]:
    found = list(kind.__subclasses__())
    return found + [deeper for one in found for deeper in _below(one)]


class TestBroker:
    def test_the_settings_that_prevent_known_failures(self, tmp_path: Path) -> None:
        options = broker_options(Settings(data_dir=tmp_path, redis_url="unix:///run/x.sock"))
        wanted = {
            "broker_url": "redis+socket:///run/x.sock",
            "task_acks_late": True,
            "task_acks_on_failure": True,
            "task_acks_on_timeout": True,
            "task_reject_on_worker_lost": False,
            "task_retry_on_worker_lost": False,
            "accept_content": ["json"],
            "result_backend": None,
            "worker_prefetch_multiplier": 1,
            "worker_disable_prefetch": True,
            "worker_cancel_long_running_tasks_on_connection_loss": False,
            "worker_enable_remote_control": False,
        }
        assert {name: options[name] for name in wanted} == wanted
        transport = options["broker_transport_options"]
        assert transport["visibility_timeout"] >= 2 * Settings(data_dir=tmp_path).max_deadline_s
        assert transport["global_keyprefix"] == "narrowcast:"
        assert transport["socket_timeout"] == 30

    def test_a_missing_broker_fails_in_time_and_keeps_the_note(self, sqlite_desk: Desk) -> None:
        sqlite_desk.job()
        settings = sqlite_desk.settings.model_copy(update={"redis_url": "redis://127.0.0.1:1/0"})
        doorbell = Doorbell(settings)
        relay = Relay(sqlite_desk.database, doorbell)
        with pytest.raises(BrokerUnavailable, match="does not take job"):
            relay.relay_once()
        with pytest.raises(EnvironmentFailure):
            doorbell.ping()
        quiet = Relay(sqlite_desk.database, Doorbell(sqlite_desk.settings))
        assert quiet.relay_once() == 1, "the note was still there"
        assert quiet.relay_once() == 0


def test_digest_of_a_spec_is_about_content_not_ids(sqlite_desk: Desk) -> None:
    first, second, third = sqlite_desk.job(), sqlite_desk.job(), sqlite_desk.job(["layers", 1])
    digests = [sqlite_desk.row(one).spec_sha256 for one in (first, second, third)]
    assert digests[0] == digests[1] != digests[2]
    assert len(digests[0]) == len(hashlib.sha256().hexdigest())


def test_looking_at_processes_that_vanish() -> None:
    """A watch that falls over a dying process would leave its run unwatched."""
    import subprocess
    import sys

    from worker.processes import children_of, family, resident_bytes

    assert children_of(2**22 - 2) == []
    for _ in range(30):
        code = "import subprocess, sys; [subprocess.Popen(['true']) for _ in range(5)]"
        one = subprocess.Popen([sys.executable, "-S", "-c", code])
        while one.poll() is None:
            assert resident_bytes(one.pid) >= 0
            assert one.pid in list(family(one.pid))
