from __future__ import annotations

import numpy as np
import pytest
import torch

from lightning_audit.dpsgd.opacus import draw_places, rows_of_records, swap_rows


def batch_with_canaries(batch: int, canaries: int) -> list[torch.Tensor]:
    """Rows that say their own number: of the data from 0, of the canaries from 100."""
    numbers = torch.cat([torch.arange(batch), 100 + torch.arange(canaries)]).float()
    return [numbers.clone(), numbers[:, None].repeat(1, 3), numbers[:, None, None].repeat(1, 2, 2)]


@pytest.mark.parametrize(("batch", "canaries"), [(5, 2), (3, 3), (2, 4), (0, 3), (4, 0)])
def test_rows_change_places_alike_in_all_tensors_and_none_is_lost(
    batch: int, canaries: int
) -> None:
    places = draw_places((1,), batch, canaries)
    assert len(places) <= min(batch, canaries)
    assert len(set(places.tolist())) == len(places)
    tensors = batch_with_canaries(batch, canaries)
    before = [tensor.clone() for tensor in tensors]
    swap_rows(tensors, places, canaries)
    order = [int(number) for number in tensors[0]]
    assert [order[place] for place in places] == [100 + i for i in range(len(places))]
    assert order[batch : batch + len(places)] == places.tolist()
    assert sorted(order) == sorted(int(number) for number in before[0])
    for tensor in tensors:
        assert tensor.flatten(1).amax(1).tolist() == order if tensor.dim() > 1 else True
    assert rows_of_records(tensors[0], places, canaries).tolist() == list(range(batch))
    swap_rows(tensors, places, canaries)
    assert all(map(torch.equal, tensors, before))


@pytest.mark.parametrize(("batch", "canaries"), [(8, 3), (2, 5)])
def test_a_canary_stands_in_every_row_as_often_as_in_any_other(batch: int, canaries: int) -> None:
    counts, runs = np.zeros(batch), 4000
    behind = 0
    for seed in range(runs):
        places = draw_places((7, seed), batch, canaries)
        counts[places] += 1
        behind += canaries - len(places)
    # Each row is a canary's with probability m / (n + m): five standard deviations.
    part = canaries / (batch + canaries)
    allowed = 5.0 * np.sqrt(runs * part * (1.0 - part))
    assert np.abs(counts - runs * part).max() < allowed
    assert abs(behind - runs * canaries * part) < canaries * allowed


def test_without_a_seed_canaries_stay_behind_the_batch() -> None:
    assert len(draw_places(None, 5, 2)) == 0
