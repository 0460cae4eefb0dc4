"""Twenty thousand appends do not slow down, commits are paced, memory is bounded."""

import os
import statistics
import time

import numpy as np
from fake_trainer import SIZE, TABLE
from grokscope.runs import buffer, pace
from grokscope.runs.store import Run, RunWriter


def test_twenty_thousand_appends_do_not_slow_down(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    rows = np.random.default_rng(0).standard_normal((100, SIZE)).astype(np.float32)
    took = []
    with RunWriter.create(tmp_path, None, TABLE, commit_bytes=10**9) as writer:
        for step in range(20_000):
            begin = time.process_time()
            writer.append(step, rows[step % 100])
            writer.log(step, {"loss": 1.0 / (1 + step), "correct": step})
            took.append(time.process_time() - begin)
            if step % 1000 == 999:
                writer.commit()
    run = Run.open(tmp_path)
    assert len(run) == 20_000
    assert len(run.index.theta.pieces) == 20
    assert np.array_equal(run.theta(12_345), rows[45])
    assert np.array_equal(np.concatenate([b for _, b in run.columns(SIZE)])[-100:], rows)
    # medians of processor time: constant cost gives 1; rewriting what came before would give about 9
    assert statistics.median(took[-2000:]) < 3 * statistics.median(took[1000:3000])


def test_commits_come_after_bytes_or_time(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    now = 0.0
    monkeypatch.setattr(pace, "monotonic", lambda: now)
    row = np.zeros(SIZE, np.float32)
    with RunWriter.create(tmp_path, None, TABLE, commit_bytes=3 * row.nbytes) as writer:
        for step, due in enumerate((False, False, True)):
            writer.append(step, row)
            assert writer.due() == due
        writer.commit()
        assert not writer.due()
        gaps, last = [], 0.0
        while now < 60_000:
            now += 2.0
            if writer.due():
                writer.commit()
                gaps.append(now - last)
                last = now
    assert min(gaps) == 10  # seconds, at first
    assert max(gaps) == 600  # at last
    assert len(gaps) < 400


def test_rows_that_nobody_commits_fill_no_memory_and_become_one_segment(tmp_path, monkeypatch):
    monkeypatch.setattr(buffer, "PENDING_BYTES", 10 * 4 * SIZE)
    row = np.zeros(SIZE, np.float32)
    with RunWriter.create(tmp_path, None, TABLE) as writer:
        for step in range(500):
            writer.append(step, row + np.float32(step))
        assert len(writer._theta._pending) <= 11
        assert len(writer._theta._spare) <= 11
        assert not (tmp_path / "run.h5").exists()
    assert [file.name for file in (tmp_path / "segments").iterdir()] == ["00000000.h5"]
    assert [theta[0] for theta in Run.open(tmp_path).rows()] == list(range(500))
