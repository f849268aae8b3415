"""Archives of arrays with any names."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from converter.source.npz import write_npz


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    given = {
        "file": np.arange(3),
        "allow_pickle": np.float32(2.5),
        "state.0": np.ones((2, 0), np.float32),
        "a/b": np.array([True]),
        "fortran": np.asfortranarray(np.ones((2, 3))),
    }
    write_npz(tmp_path / "made" / "x.npz", given)
    with np.load(tmp_path / "made" / "x.npz", allow_pickle=False) as read:
        assert read.files == list(given)
        for name, array in given.items():
            assert np.array_equal(read[name], array)
            assert read[name].dtype == np.asarray(array).dtype
