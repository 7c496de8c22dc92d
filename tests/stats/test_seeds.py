"""The small seed of noise is found, and none is where there is none."""

import numpy as np
import pytest
import torch

from lightning_audit.stats.seeds import NUMPY_SEEDS, SEEDS, small_seed


@pytest.mark.parametrize("seed", [0, 1, 2**15 - 1, 2**15, SEEDS - 1])
def test_torchs_seeds_are_found_for_noise_of_any_size(seed):
    noise = torch.normal(0.0, 0.37, (8, 5), generator=torch.Generator().manual_seed(seed))
    assert small_seed(noise.numpy()) == f"torch.Generator().manual_seed({seed})"


@pytest.mark.parametrize("make", [np.random.default_rng, np.random.RandomState])
@pytest.mark.parametrize("seed", [0, NUMPY_SEEDS - 1])
def test_numpys_seeds_are_found(make, seed):
    assert small_seed(2.5 * make(seed).normal(size=16)) == f"numpy.random.{make.__name__}({seed})"


@pytest.mark.parametrize("seed", [SEEDS, 2**31])
def test_no_seed_is_found_beyond_the_search(seed):
    noise = torch.randn(64, generator=torch.Generator().manual_seed(seed))
    assert small_seed(noise.numpy()) == ""


def test_too_few_entries_or_none_that_are_numbers_have_no_seed():
    assert (
        small_seed(np.ones(15)) == small_seed(np.zeros(20)) == small_seed(np.full(20, np.nan)) == ""
    )
