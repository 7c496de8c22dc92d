"""Several fits on the same records, each with an accountant of its own."""

import json

import numpy as np
import pytest
import torch
from opacus import PrivacyEngine
from torch.utils.data import Subset, TensorDataset
from training_support import ManualModule, PrivateModule, mlp, random_data, trainer_for

from lightning_audit import PrivacyAudit, PrivacyClaim
from lightning_audit.run.earlier_fits import FITS_NAME, Records, forget_fits

DELTA = 1e-5


class Rows(torch.utils.data.Dataset):
    """Records that no other object shows."""

    def __init__(self, data):
        self._get, self._count = data.__getitem__, len(data)

    def __len__(self):
        return self._count

    def __getitem__(self, number):
        return self._get(number)


def fit(folder, data, state=None, *, steps=3, module=PrivateModule, **claim):
    """Report and last parameters of a fit, with an accountant of its own."""
    torch.manual_seed(0)
    net = mlp()
    if state is not None:
        net.load_state_dict(state)
    own = PrivacyClaim(delta=DELTA, **claim)
    audit = PrivacyAudit(claim=own, seed=1, on_violation="warn", examinations=0, report_dir=folder)
    made = module(net, dataset=data, batch_size=len(data) // 32)  # the same rate for a part
    trainer_for(folder, audit, max_steps=steps).fit(made)
    return audit.report, {name: value.clone() for name, value in net.state_dict().items()}


def noted(report):
    return [note for note in report.notes if "earlier training" in note]


def status(report, name="accounting"):
    return next(check.status for check in report.checks if check.name == name)


@pytest.fixture(scope="module")
def budget(tmp_path_factory):
    """An epsilon that one fit keeps and two do not."""
    folder = tmp_path_factory.mktemp("budget")
    once, _ = fit(folder / "once", random_data(seed=5))
    twice, _ = fit(folder / "twice", random_data(seed=6), steps=6)
    forget_fits()
    return (once.epsilon_spent + twice.epsilon_spent) / 2


def test_a_fit_that_continues_another_must_keep_the_claim_with_it(tmp_path, budget):
    data = random_data()
    first, state = fit(tmp_path / "a", data, epsilon=budget)
    second, _ = fit(tmp_path / "b", data, state, epsilon=budget)
    assert (status(first), status(second)) == ("ok", "violated")
    assert noted(first) == noted(fit(tmp_path / "c", random_data(seed=1))[0]) == []
    (note,) = noted(second)
    assert first.epsilon_spent < budget < float(note.split("epsilon ")[1].split()[0])
    assert second.epsilon_spent > budget
    assert second.composed
    found = next(check for check in second.checks if check.name == "accounting")
    assert "those that it continues" in found.message
    assert "PrivacyClaim(new_data=True)" in found.message


@pytest.mark.parametrize("kind", ["new_data", "other start", "no claim", "disjoint"])
def test_fits_that_need_not_keep_a_claim_together(kind, tmp_path, budget):
    data = random_data()
    halves = [Subset(data, range(256)), Subset(data, range(256, 512))]
    own, other = halves if kind == "disjoint" else (data, data)
    given = {} if kind == "no claim" else {"epsilon": budget}
    _, state = fit(tmp_path / "a", own, **given)
    if kind == "other start":
        state = None
    if kind == "new_data":
        given["new_data"] = True
    report, _ = fit(tmp_path / "b", other, state, **given)
    assert status(report) == "ok"
    assert "new_data" not in " ".join(report.pass_blockers)


@pytest.mark.parametrize("where", ["process", "directory"])
def test_a_fit_that_continues_one_on_unknown_records_is_inconclusive(where, tmp_path, budget):
    data = Rows(random_data())
    first, state = fit(tmp_path, data, epsilon=budget)
    assert "new_data" not in " ".join(first.pass_blockers)
    if where == "directory":
        forget_fits()
    report, _ = fit(tmp_path, Rows(random_data()), state, epsilon=budget)
    assert status(report) == "ok"
    assert report.verdict.outcome == "INCONCLUSIVE"
    assert "PrivacyClaim(new_data=True)" in " ".join(report.pass_blockers)
    text = (tmp_path / FITS_NAME).read_text()
    lines = [json.loads(line) for line in text.splitlines() if line]
    ended = [line for line in lines if line["last"]]  # each fit has one when it begins, too
    assert [line["first"] for line in ended[1:]] == [line["last"] for line in ended[:1]]
    assert len(lines) == 4
    assert all(set(line) == {"run", "first", "last", "phases"} for line in lines)


def test_a_damaged_file_of_fits_is_read_as_far_as_it_goes(tmp_path, budget):
    _, state = fit(tmp_path, random_data(), epsilon=budget)
    forget_fits()
    file = tmp_path / FITS_NAME
    file.write_bytes(b'{"first": 3}\nno json\n[1]\n\xff' + file.read_bytes() + b'{"first": "a')
    report, _ = fit(tmp_path, random_data(), state, epsilon=budget)
    assert "PrivacyClaim(new_data=True)" in " ".join(report.pass_blockers)


def test_a_fit_that_was_killed_is_an_earlier_training_of_its_directory(tmp_path, budget):
    fit(tmp_path, random_data(), epsilon=budget)
    forget_fits()
    file = tmp_path / FITS_NAME
    begun, _ = (line for line in file.read_text().splitlines() if line)
    file.write_text(begun)  # as its process left it
    report, _ = fit(tmp_path, random_data(), epsilon=budget)
    assert [note for note in report.notes if "an earlier training had this report" in note]


def test_steps_that_the_accountant_knows_are_not_counted_twice(tmp_path, budget):
    engine, data = PrivacyEngine(), random_data()

    def with_engine(*args, **kwargs):
        made = PrivateModule(*args, **kwargs)
        made.engine = engine
        return made

    _, state = fit(tmp_path / "a", data, module=with_engine, epsilon=budget)
    report, _ = fit(tmp_path / "b", data, state, module=with_engine, epsilon=budget)
    assert noted(report) == []
    assert report.epsilon_spent > budget  # the accountant's own history has the steps of both
    third, _ = fit(tmp_path / "c", data)  # of another start: what the others spent, once each
    (note,) = noted(third)
    forget_fits()
    alone, _ = fit(tmp_path / "d", random_data(seed=1), steps=9)
    together = float(note.split("epsilon ")[1].split()[0])
    assert together == pytest.approx(alone.epsilon_spent, rel=1e-3)


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [(range(4), range(3, 9), True), (range(4), range(4, 9), False), (None, range(2), True)],
)
def test_records_of_subsets_are_compared_by_number(one, other, shared):
    data = random_data()
    both = [data if part is None else Subset(data, part) for part in (one, other)]
    own, theirs = map(Records.of, both)
    assert own.shared_with(theirs) is theirs.shared_with(own) is shared
    nested = Records.of(Subset(Subset(data, range(8, 512)), range(4)))  # records 8 to 11
    assert nested.shared_with(Records.of(Subset(data, [11]))) is True
    assert nested.shared_with(Records.of(Subset(data, [12]))) is False


def test_other_objects_may_hold_the_same_records():
    data = random_data()
    again = TensorDataset(*(each.clone() for each in data.tensors))
    assert Records.of(data).shared_with(Records.of(again)) is None
    assert Records.of([1, 2]).shared_with(Records.of([1, 2])) is None
    for own in (Rows(data), torch.zeros(4, 2), np.zeros((4, 2))):
        assert Records.of(own).shared_with(Records.of(own)) is True


class WithEpsilon(ManualModule):
    """Noise that Opacus calibrates to an epsilon for one epoch."""

    target = 3.0

    def configure_optimizers(self):
        self.net, optimizer, _ = PrivacyEngine().make_private_with_epsilon(
            module=self.net,
            optimizer=torch.optim.SGD(self.net.parameters(), lr=0.1),
            data_loader=self.plain_loader(),
            target_epsilon=self.target,
            target_delta=DELTA,
            epochs=1,
            max_grad_norm=1.0,
        )
        return optimizer


@pytest.mark.parametrize("epochs", [1, 3])
def test_the_epsilon_that_opacus_was_given_is_shown_with_what_was_spent(epochs, tmp_path):
    before = PrivacyEngine.make_private_with_epsilon
    audit = PrivacyAudit(
        seed=1, on_violation="warn", examinations=0, claim=PrivacyClaim(delta=DELTA)
    )
    trainer = trainer_for(tmp_path, audit, max_steps=-1, max_epochs=epochs)
    trainer.fit(WithEpsilon(dataset=random_data(128)))
    (note,) = [note for note in audit.report.notes if "target_epsilon" in note]
    assert "target_epsilon=3 at delta 1e-05 for 1 epoch" in note
    assert ("state PrivacyClaim(epsilon=3" in note) is (epochs > 1)
    assert PrivacyEngine.make_private_with_epsilon is before
