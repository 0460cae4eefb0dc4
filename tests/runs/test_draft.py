"""A segment's bytes do not depend on how the system can write them."""

import errno
import fcntl
import os

import h5py
import numpy as np
import pytest
from grokscope.runs import draft as module
from grokscope.runs.draft import Draft

SIZE, ROWS = 1500, 5  # 6,000 bytes a row: no multiple of a block


@pytest.fixture
def rows():
    return np.random.default_rng(0).standard_normal((ROWS, SIZE)).astype(np.float32)


def written(folder, rows):
    (folder / "segments").mkdir(parents=True)
    draft = Draft(folder, 0, "theta", SIZE, "float32")
    for row in rows:
        draft.write(row)
    piece = draft.finish(ROWS, first_row=0)
    return piece, (folder / piece.file).read_bytes()


@pytest.mark.parametrize("stage", [4096, 8192, 2**22])
def test_rows_over_any_blocks(tmp_path, monkeypatch, rows, stage):
    monkeypatch.setattr(module, "STAGE_BYTES", stage)
    piece, data = written(tmp_path, rows)
    assert data[piece.offset :] == rows.tobytes()
    with h5py.File(tmp_path / piece.file) as file:
        assert np.array_equal(file["theta"], rows)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSPC])
def test_a_file_system_that_can_t_write_past_the_cache(tmp_path, monkeypatch, rows, number):
    """EINVAL is how it says so; anything else is an error like any other."""
    expected = written(tmp_path / "a", rows)
    monkeypatch.setattr(module, "STAGE_BYTES", 4096)
    pwrite = os.pwrite

    def refusing(descriptor, data, position):
        direct = fcntl.fcntl(descriptor, fcntl.F_GETFL) & getattr(os, "O_DIRECT", 0)
        if direct or number == errno.ENOSPC:
            raise OSError(number, os.strerror(number))
        return pwrite(descriptor, data, position)

    monkeypatch.setattr(os, "pwrite", refusing)
    if number == errno.EINVAL:
        assert written(tmp_path / "b", rows) == expected
    else:
        with pytest.raises(OSError, match=r"segments/00000000\.h5") as caught:
            written(tmp_path / "b", rows)
        assert caught.value.errno == number


def test_a_draft_is_deleted_even_while_an_error_holds_its_memory(tmp_path, monkeypatch, rows):
    monkeypatch.setattr(module, "STAGE_BYTES", 4096)
    (tmp_path / "segments").mkdir()
    draft = Draft(tmp_path, 0, "theta", SIZE, "float32")

    def full(*_):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="full") as error:
        draft.write(rows[0])
    draft.discard()
    assert error.value
    assert not list((tmp_path / "segments").iterdir())
