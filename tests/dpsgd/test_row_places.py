from __future__ import annotations

import numpy as np
import pytest
import torch

from lightning_audit.dpsgd.row_places import draw_places, rows_of_records, swap_rows


def batch_with_canaries(batch: int, canaries: int) -> list[torch.Tensor]:
    """Rows that say their own number: of the data from 0, of the canaries from 100."""
    numbers = torch.cat([torch.arange(batch), 100 + torch.arange(canaries)]).float()
    return [numbers.clone(), numbers[:, None].repeat(1, 3), numbers[:, None, None].repeat(1, 2, 2)]


@pytest.mark.parametrize(("batch", "canaries"), [(5, 2), (3, 3), (2, 4), (0, 3), (4, 0)])
def test_rows_change_places_alike_in_all_tensors_and_none_is_lost(
    batch: int, canaries: int
) -> None:
    places = draw_places(np.random.default_rng(1), batch, canaries)
    assert len(places) == min(batch, canaries)
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


def test_a_canary_stands_in_every_row_as_often_as_in_any_other() -> None:
    rng = np.random.default_rng(0)
    drawn = np.concatenate([draw_places(rng, 8, 3) for _ in range(4000)])
    counts = np.bincount(drawn, minlength=8)
    # Binomial of 4000 draws at 3/8: five standard deviations are 153.
    assert np.abs(counts - 1500).max() < 153


def test_without_a_generator_canaries_stay_behind_the_batch() -> None:
    assert len(draw_places(None, 5, 2)) == 0
