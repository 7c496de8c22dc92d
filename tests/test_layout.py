import numpy as np
import pytest

from lightning_audit.layout import Direction, Part, TensorSlot, by_tensor

SHAPES = ((3, 4), (5,), ())
LAYOUT = [TensorSlot(f"tensor {i}", shape) for i, shape in enumerate(SHAPES)]


def direction(rng: np.random.Generator) -> Direction:
    """Some entries in some of the tensors."""
    parts = []
    for tensor in rng.permutation(len(LAYOUT))[:2].tolist():
        size = LAYOUT[tensor].numel
        index = rng.permutation(size)[: rng.integers(1, size + 1)]
        parts.append(Part(tensor, index, rng.standard_normal(len(index))))
    return Direction(tuple(parts))


def dense(direction: Direction) -> np.ndarray:
    """All coordinates of a direction, one tensor after the other."""
    whole = [np.zeros(slot.numel) for slot in LAYOUT]
    for part in direction.parts:
        whole[part.tensor][part.index] = part.value
    return np.concatenate(whole)


@pytest.mark.parametrize("seed", range(20))
def test_norm_and_product_are_those_of_the_dense_vectors(seed):
    rng = np.random.default_rng(seed)
    one, other = direction(rng), direction(rng)
    assert one.norm() == pytest.approx(np.linalg.norm(dense(one)))
    assert one.dot(other) == pytest.approx(dense(one) @ dense(other))
    assert one.dot(other) == pytest.approx(other.dot(one))


def test_a_tensor_of_no_dimension_has_one_coordinate():
    assert [slot.numel for slot in LAYOUT] == [12, 5, 1]


def test_parts_are_found_by_their_tensor_with_the_number_of_their_direction():
    rng = np.random.default_rng(1)
    directions = [direction(rng) for _ in range(5)]
    found = by_tensor(directions)
    assert sum(map(len, found.values())) == sum(len(d.parts) for d in directions)
    for tensor, rows in found.items():
        assert all(part.tensor == tensor and part in directions[i].parts for i, part in rows)
