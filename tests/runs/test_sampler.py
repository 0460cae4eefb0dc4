import pytest
import torch
from grokscope.runs.sampler import Sampler


def test_without_replacement_every_epoch_holds_each_sample_once():
    sampler = Sampler(10, 4, replacement=False, seed=0)
    for _ in range(3):
        epoch = [sampler.next() for _ in range(3)]
        assert [len(batch) for batch in epoch] == [4, 4, 2]
        assert sorted(torch.cat(epoch).tolist()) == list(range(10))


def test_with_replacement_batches_have_the_asked_size_and_reach_every_sample():
    sampler = Sampler(10, 64, replacement=True, seed=0)
    batch = torch.cat([sampler.next() for _ in range(10)])
    assert len(batch) == 640
    # 640 uniform draws miss one of 10 samples with probability 10 * 0.9**640 < 1e-28
    assert set(batch.tolist()) == set(range(10))


def test_full_batch_is_everything_in_order():
    assert Sampler(5, "full", replacement=True, seed=0).next().tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("replacement", [True, False])
def test_a_saved_state_continues_with_the_same_batches(replacement):
    sampler = Sampler(10, 4, replacement=replacement, seed=3)
    for _ in range(2):
        sampler.next()
    state = sampler.state()
    expected = [sampler.next().tolist() for _ in range(5)]
    other = Sampler(10, 4, replacement=replacement, seed=99)
    other.load(state)
    assert [other.next().tolist() for _ in range(5)] == expected


def test_the_global_random_state_is_not_touched():
    before = torch.get_rng_state()
    Sampler(10, 4, replacement=True, seed=0).next()
    assert torch.equal(torch.get_rng_state(), before)
