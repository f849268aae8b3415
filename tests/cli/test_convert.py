"""``narrowcast convert`` as a script sees it: exit status, standard output, files."""

from __future__ import annotations

import contextlib
import json
import os
import pty
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.cli.command import names, narrowcast, start, write
from tests.models.build import model
from tests.models.run import floats
from tests.models.tiny import tiny


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model and a batch that convert without trouble."""
    given = tiny("mlp")
    write(tmp_path, given.model(), **given.feeds(np.random.default_rng(0)))
    return tmp_path


CONVERT = ("convert", "model.onnx", "--samples", "batch.npz")


class TestPass:
    def test_a_table_on_stdout_and_nothing_on_stderr(self, folder: Path) -> None:
        """Without a terminal there is no progress; the default name is the model's with the format in it."""
        ended = narrowcast(folder, *CONVERT)
        assert (ended.status, ended.err) == (0, "")
        assert ended.out.startswith("PASS  model.onnx to FP16\n")
        assert names(folder) == ["batch.npz", "model.fp16.onnx", "model.onnx"]

    def test_quiet_and_the_output_is_a_valid_model_of_the_same_interface(self, folder: Path) -> None:
        ended = narrowcast(folder, *CONVERT, "--to", "bf16", "--quiet")
        assert (ended.status, ended.out, ended.err) == (0, "", "")
        made = onnx.load(folder / "model.bf16.onnx")
        onnx.checker.check_model(made, full_check=True)
        given = onnx.load(folder / "model.onnx")
        assert (made.graph.input, made.graph.output) == (given.graph.input, given.graph.output)
        assert {t.data_type for t in made.graph.initializer} == {onnx.TensorProto.BFLOAT16}

    def test_json_is_one_object(self, folder: Path) -> None:
        ended = narrowcast(folder, *CONVERT, "--json", "--report", "r.json")
        assert (ended.status, ended.err) == (0, "")
        assert ended.out.count("\n") == 1
        found = ended.json
        assert set(found) == {"exit_status", "verdict", "files", "outputs", "summary"}
        assert found["exit_status"] == 0
        assert found["verdict"] == {"status": "pass", "reasons": []}
        assert found["files"] == {"model": "model.fp16.onnx", "report": "r.json"}
        assert found["outputs"][0]["rel_l2_error"] <= found["outputs"][0]["allowed"]["max_rel_l2"]

    def test_every_view_is_written(self, folder: Path) -> None:
        ended = narrowcast(folder, *CONVERT, "--output", "o.onnx", "--report", "r.json", "--html", "r.html",
                           "--junit", "r.xml", "--csv", "r.csv", "--quiet")  # fmt: skip
        assert ended.status == 0
        assert names(folder) == ["batch.npz", "model.onnx", "o.onnx", "r.csv", "r.html", "r.json", "r.xml"]

    def test_a_second_run_is_the_same_bytes(self, folder: Path) -> None:
        for number in (1, 2):
            narrowcast(folder, *CONVERT, "--output", "out.onnx", "--report", f"r{number}.json", "--quiet")
            (folder / "out.onnx").rename(folder / f"o{number}.onnx")
        assert (folder / "o1.onnx").read_bytes() == (folder / "o2.onnx").read_bytes()
        first, second = (json.loads((folder / f"r{n}.json").read_text()) for n in (1, 2))
        for report in (first, second):
            del report["timings"]
        assert first == second
        assert str(folder) not in (folder / "r1.json").read_text()

    def test_progress_on_a_terminal(self, folder: Path) -> None:
        ours, theirs = pty.openpty()
        with start(folder, *CONVERT, stderr=theirs, extra={"TERM": "xterm"}) as running:
            os.close(theirs)
            out, _ = running.communicate(timeout=120)
        shown = b""
        with contextlib.suppress(OSError):  # how the end of a terminal shows
            while piece := os.read(ours, 65536):
                shown += piece
        os.close(ours)
        assert b"observe" in shown
        assert out.startswith("PASS")

    def test_out_equal_to_model(self, folder: Path) -> None:
        before = onnx.load(folder / "model.onnx")
        assert narrowcast(folder, *CONVERT, "--output", "model.onnx", "--quiet").status == 0
        made = onnx.load(folder / "model.onnx")
        assert made.graph.input == before.graph.input
        assert len(made.graph.node) > len(before.graph.node)
        assert names(folder) == ["batch.npz", "model.onnx"]

    def test_out_equal_to_model_with_external_data(self, tmp_path: Path, rng: np.random.Generator) -> None:
        weights = {"w": rng.standard_normal((64, 64)).astype(np.float32)}
        proto = model("g (float[4, 64] x) => (float[4, 64] y) { y = MatMul(x, w) }", weights=weights)
        onnx.save(proto, tmp_path / "model.onnx", save_as_external_data=True, location="model.data")
        np.savez(tmp_path / "batch.npz", x=rng.standard_normal((4, 64)).astype(np.float32))
        ended = narrowcast(tmp_path, *CONVERT, "--output", "model.onnx", "--json")
        assert ended.status == 0
        made = onnx.load(tmp_path / "model.onnx")
        onnx.checker.check_model(tmp_path / "model.onnx", full_check=True)
        expected = weights["w"].astype(np.float16)
        np.testing.assert_array_equal(onnx.numpy_helper.to_array(made.graph.initializer[0]), expected)

    def test_narrow_inputs_and_outputs(self, folder: Path) -> None:
        assert narrowcast(folder, *CONVERT, "--io-types", "narrow", "--output", "o.onnx", "--quiet").status == 0
        graph = onnx.load(folder / "o.onnx").graph
        kinds = {v.type.tensor_type.elem_type for v in (*graph.input, *graph.output)}
        assert kinds == {onnx.TensorProto.FLOAT16}

    def test_several_batches_and_folders(self, folder: Path) -> None:
        (folder / "more").mkdir()
        for name in ("a", "b"):
            (folder / "more" / f"{name}.npz").write_bytes((folder / "batch.npz").read_bytes())
        ended = narrowcast(folder, *CONVERT, "--samples", "more", "--report", "r.json", "--quiet")
        assert ended.status == 0
        assert json.loads((folder / "r.json").read_text())["batches"] == 3


class TestFail:
    def test_a_limit_that_no_plan_keeps(self, folder: Path) -> None:
        ended = narrowcast(folder, *CONVERT, "--max-rel-l2", "1e-9", "--no-repair", "--output", "o.onnx",
                           "--report", "r.json", "--junit", "r.xml", "--json")  # fmt: skip
        assert (ended.status, ended.err) == (1, "")
        assert ended.json["exit_status"] == 1
        (reason,) = ended.json["verdict"]["reasons"]
        assert (reason["limit"], reason["output"], reason["allowed"]) == ("max_rel_l2", "y", 1e-9)
        assert names(folder) == ["batch.npz", "model.onnx", "o.onnx", "r.json", "r.xml"]
        onnx.checker.check_model(folder / "o.onnx", full_check=True)
        assert 'failures="' in (folder / "r.xml").read_text()

    def test_sqnr_and_a_table_that_says_so(self, folder: Path) -> None:
        ended = narrowcast(folder, *CONVERT, "--min-sqnr-db", "200", "--no-repair")
        assert ended.status == 1
        assert ended.out.startswith("FAIL  model.onnx to FP16\n")
        assert "200.0 dB is asked for" in ended.out

    def test_repair_keeps_it_instead(self, folder: Path) -> None:
        ended = narrowcast(folder, *CONVERT, "--max-rel-l2", "7e-4", "--json")
        assert ended.status == 0
        assert 0 < ended.json["summary"]["narrow_nodes"] < 3

    def test_search_keeps_it_too(self, folder: Path) -> None:
        ended = narrowcast(folder, *CONVERT, "--max-rel-l2", "7e-4", "--search", "--json")
        assert ended.status == 0
        assert ended.json["summary"]["search_evaluations"] > 0

    def test_a_tolerance_file_beside_us(self, folder: Path) -> None:
        for name in ("limits.json", "limits"):
            (folder / name).write_text('{"outputs": {"y": {"max_abs": 1e-12}}}')
            ended = narrowcast(folder, *CONVERT, "--tolerance", name, "--no-repair", "--json")
            assert ended.status == 1
            assert {r["limit"] for r in ended.json["verdict"]["reasons"]} == {"max_abs"}

    def test_a_file_that_is_called_like_a_preset_is_not_read(self, folder: Path) -> None:
        (folder / "loose").write_text("no JSON")
        assert narrowcast(folder, *CONVERT, "--tolerance", "loose", "--quiet").status == 0


class TestUnchecked:
    def test_without_samples(self, folder: Path) -> None:
        ended = narrowcast(folder, "convert", "model.onnx", "--no-validate", "--json")
        assert ended.status == 0
        assert ended.json["verdict"] == {"status": "unchecked", "reasons": []}
        assert ended.json["outputs"] == []
        onnx.checker.check_model(folder / "model.fp16.onnx", full_check=True)

    def test_with_samples_ranges_still_count(self, tmp_path: Path) -> None:
        proto = model("g (float[2] x) => (float[2] y) { [square] y = Mul(x, x) }")
        write(tmp_path, proto, x=floats([1e4, 1.0]))
        narrowcast(tmp_path, *CONVERT, "--no-validate", "--report", "r.json", "--overflow", "widen", "--quiet")
        report = json.loads((tmp_path / "r.json").read_text())
        assert report["decisions"][0]["rule"] == "overflow"


REFUSED = [
    ((), "no sample batch was given: pass --samples FILE.npz, or --no-validate to convert unchecked"),
    (("--samples", "none.npz"), "sample batch '{folder}/none.npz' does not exist; check the path"),
    (("--samples", "batch.npz", "--to", "fp8"), "option to is 'fp8'; it takes fp16 or bf16"),
    (("--samples", "batch.npz", "--tolerance", "tight"), "tolerance 'tight' is neither a preset (fp16-default,"),
    (("--samples", "batch.npz", "--policy", "none.json"), "policy file 'none.json' does not exist; check the path"),
    (("--samples", "batch.npz", "--keep-fp32", "enc*"), "--keep-fp32 'enc*' matches no float node of the model;"),
]  # fmt: skip


class TestRefused:
    """One of each kind of error: that it crosses the child's border with its exit status and its text."""

    @pytest.mark.parametrize(("options", "message"), REFUSED, ids=[" ".join(o) or "no samples" for o, _ in REFUSED])
    def test_options_and_batches(self, folder: Path, options: tuple[str, ...], message: str) -> None:
        before = names(folder)
        ended = narrowcast(folder, "convert", "model.onnx", *options)
        assert (ended.status, ended.out) == (2, "")
        assert ended.err.startswith("narrowcast: " + message.replace("{folder}", str(folder)))
        assert ended.err.count("\n") == 1
        assert names(folder) == before

    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("gone.onnx", None, "model '{folder}/gone.onnx' does not exist; check the path"),
            ("text.onnx", b"hello world", "'{folder}/text.onnx' is not an ONNX model (its first bytes are 68 65 6c"),
            ("old.onnx", model("g (float[2] x) => (float[2] y) { y = Relu(x) }", 6).SerializeToString(),
             "the model uses opset 6; narrowcast needs at least 7."),
        ],
        ids=["missing", "no model", "opset"],
    )  # fmt: skip
    def test_models(self, folder: Path, name: str, content: bytes | None, message: str) -> None:
        if content is not None:
            (folder / name).write_bytes(content)
        ended = narrowcast(folder, "convert", name, "--samples", "batch.npz", "--json")
        assert (ended.status, ended.out) == (2, "")
        assert ended.err.startswith("narrowcast: " + message.replace("{folder}", str(folder)))

    def test_external_data_that_is_missing(self, tmp_path: Path) -> None:
        proto = model("g (float[64] x) => (float[64] y) { y = Mul(x, w) }", weights={"w": np.ones(64, np.float32)})
        onnx.save(proto, tmp_path / "model.onnx", save_as_external_data=True, location="w.data", size_threshold=0)
        (tmp_path / "w.data").unlink()
        np.savez(tmp_path / "batch.npz", x=np.ones(64, np.float32))
        ended = narrowcast(tmp_path, *CONVERT)
        assert ended.status == 2
        assert "external data 'w.data' of tensor 'w' is missing beside 'model.onnx'" in ended.err

    def test_an_fp32_run_that_fails_names_the_node(self, tmp_path: Path) -> None:
        proto = model("g (float[N] x, float[M] z) => (float[K] y) { [sum] y = Add(x, z) }")
        write(tmp_path, proto, x=np.ones(2, np.float32), z=np.ones(3, np.float32))
        ended = narrowcast(tmp_path, *CONVERT)
        assert (ended.status, ended.out) == (2, "")
        assert ended.err.startswith("narrowcast: node 'sum' (Add) fails in FP32 on this batch: ")

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [((*CONVERT, "--wat"), "No such option: --wat"), (("convert",), "Missing argument"),
         ((*CONVERT, "--max-rel-l2", "-1"), "Invalid value for '--max-rel-l2'"),
         (("konvert",), "Did you mean 'convert'?"),
         ((), "Usage: narrowcast COMMAND [OPTIONS]")],
    )  # fmt: skip
    def test_usage(self, folder: Path, arguments: tuple[str, ...], message: str) -> None:
        ended = narrowcast(folder, *arguments)
        assert (ended.status, ended.out) == (2, "")
        assert message in ended.err

    @pytest.mark.parametrize("option", ["--output", "--html"])
    def test_a_folder_that_is_not_there_before_the_run(self, folder: Path, option: str) -> None:
        ended = narrowcast(folder, *CONVERT, option, "none/file")
        assert (ended.status, ended.out) == (3, "")
        assert ended.err == f"narrowcast: the folder of output '{folder}/none/file' does not exist; make it first\n"
        assert names(folder) == ["batch.npz", "model.onnx"]


class TestOverrides:
    def decisions(self, folder: Path) -> dict[str, str]:
        report = json.loads((folder / "r.json").read_text())
        return {d["node"]: d["format"] for d in report["decisions"]}

    def test_keep_fp32_by_name_and_by_type(self, tmp_path: Path, rng: np.random.Generator) -> None:
        proto = model(
            """g (float[2, 4] x) => (float[2, 4] y) {
                 [first_product] h = MatMul(x, w)  [first_relu] r = Relu(h)  [last_product] y = MatMul(r, w) }""",
            weights={"w": rng.standard_normal((4, 4)).astype(np.float32)},
        )
        write(tmp_path, proto, x=rng.standard_normal((2, 4)).astype(np.float32))
        narrowcast(tmp_path, *CONVERT, "--keep-fp32", "first*", "--report", "r.json", "--quiet")
        assert self.decisions(tmp_path) == {"first_product": "fp32", "first_relu": "fp32", "last_product": "fp16"}
        narrowcast(tmp_path, *CONVERT, "--keep-fp32", "op:MatMul", "--report", "r.json", "--quiet")
        assert self.decisions(tmp_path)["last_product"] == "fp32"
        (tmp_path / "p.json").write_text('{"rules": [{"op_type": "MatMul", "feeds": "Relu", "reason": "by hand"}]}')
        narrowcast(tmp_path, *CONVERT, "--policy", "p.json", "--report", "r.json", "--quiet")
        assert self.decisions(tmp_path)["first_product"] == "fp32"
        assert self.decisions(tmp_path)["last_product"] == "fp16"


class TestPaths:
    """Each file is written once, and none over a file that is read."""

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (
                ("--output", "a", "--report", "./a"),
                "are both 'a'; give each file a name of its own",
            ),
            (("--report", "model.onnx"), "--report 'model.onnx' would overwrite a file that is read"),
            (("--output", "batch.npz"), "--output 'batch.npz' would overwrite a file that is read"),
        ],
    )
    def test_a_clash_is_refused(self, folder: Path, options: tuple[str, ...], message: str) -> None:
        before = (folder / "batch.npz").read_bytes()
        ended = narrowcast(folder, *CONVERT, *options)
        assert (ended.status, ended.out) == (2, "")
        assert message in ended.err
        assert names(folder) == ["batch.npz", "model.onnx"]
        assert (folder / "batch.npz").read_bytes() == before

    def test_the_model_may_be_replaced_and_devices_named_twice(self, folder: Path) -> None:
        again = ("--output", "model.onnx", "--report", os.devnull, "--csv", os.devnull)
        assert narrowcast(folder, *CONVERT, *again).status == 0
        assert names(folder) == ["batch.npz", "model.onnx"]
        assert Path(os.devnull).is_char_device()
