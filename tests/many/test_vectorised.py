"""Many models at once are the models of a plain loop and of Opacus, and an audit trains them."""

import pickle
import signal
from dataclasses import fields, make_dataclass

import numpy as np
import pytest
import torch
from driven_trainings import digits, drive, facts, linear
from naive_dpsgd import by_opacus, differences, looped
from refused_calls import refusals, refused_changes
from torch import nn
from torch.utils.data import TensorDataset

from lightning_audit import PrivacyClaim, audit_training
from lightning_audit.many import DPSGDMany, ThisProcess, vectorised
from lightning_audit.many.engines import packed
from lightning_audit.many.identity import digest_of
from lightning_audit.many.records import Blank, Crafted, Mislabeled, Records
from lightning_audit.many.store import Plan, StoreError, TrainingStore
from lightning_audit.many.worlds import Work, worlds_of

pytestmark = pytest.mark.training
CLOSE = 1e-6
DATA = digits(60)
WITH = (torch.cat([DATA[0], torch.zeros(1, 64)]), torch.cat([DATA[1], torch.tensor([1])]))
SETS = [DATA, WITH, WITH, DATA, WITH, DATA]
SEEDS = [3, 1, 4, 15, 9, 2**32 - 1]
STEPS = 12
FULL = {"sample_rate": 1.0, "expected_batch_size": 60}


def mlp():
    return nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))


def conv():
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 4, 3, stride=2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(36, 10),
    )


def training(model=linear, **settings):
    given = {"noise_multiplier": 1.0, "max_grad_norm": 0.8, "sample_rate": 0.2, "steps": STEPS}
    given |= {"expected_batch_size": 12, "learning_rate": 0.5}
    return DPSGDMany(model, **{**given, **settings})


@pytest.mark.parametrize("model", [linear, mlp, conv])
def test_a_block_of_6_and_of_1_are_the_plain_loop(model):
    train = training(model)
    loss = nn.functional.cross_entropy
    plain = [looped(train, data, seed, loss) for data, seed in zip(SETS, SEEDS, strict=True)]
    together = train.many(SETS, SEEDS)
    alone = [train(data, seed) for data, seed in zip(SETS, SEEDS, strict=True)]
    assert differences(together, plain) < CLOSE
    assert differences(alone, plain) < CLOSE
    assert differences(plain[:1], plain[3:4]) > 0.01  # another seed


@pytest.mark.parametrize("model", [linear, mlp])
@pytest.mark.parametrize(
    "settings", [{}, FULL, {"noise_multiplier": 0.0}], ids=["Poisson", "full", "no noise"]
)
def test_a_block_is_what_opacus_trains(model, settings):
    train = training(model, **settings)
    theirs = [by_opacus(train, data, seed) for data, seed in zip(SETS, SEEDS, strict=True)]
    assert differences(train.many(SETS, SEEDS), theirs) < CLOSE


def test_an_infinite_norm_without_noise_is_plain_sgd():
    train = training(mlp, noise_multiplier=0.0, max_grad_norm=float("inf"), **FULL)
    plain = train._new(3)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.5)
    for _ in range(STEPS):
        optimizer.zero_grad()
        nn.functional.cross_entropy(plain(DATA[0]), DATA[1]).backward()
        optimizer.step()
    assert differences([train(DATA, 3)], [plain]) < CLOSE


def test_a_block_is_trained_in_parts_that_fit_the_memory(monkeypatch):
    whole = training(mlp).many(SETS, SEEDS)
    train = training(mlp, memory_mib=0.03)
    parts = []
    trained = DPSGDMany._trained

    def counting(self, batches, seeds, sums):
        parts.append(len(seeds))
        return trained(self, batches, seeds, sums)

    monkeypatch.setattr(DPSGDMany, "_trained", counting)
    assert differences(train.many(SETS, SEEDS), whole) < CLOSE
    assert parts == [3, 3]


def test_empty_batches_are_noise_alone():
    train = training(sample_rate=1e-6, model=known_start())
    [model] = train.many([DATA], [5])
    assert differences([model], [looped(train, DATA, 5, None)]) < CLOSE
    assert 0.05 < float(model.weight.detach().std()) < 0.25  # .8 * .5 / 12 * sqrt(12) = .115


def known_start():
    model = linear()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


def test_records_may_have_other_forms():
    train = training(known_start())
    first = train(DATA, 0)
    arrays = (DATA[0].double().numpy(), DATA[1].numpy())
    listed = [(row, int(target)) for row, target in zip(*DATA, strict=True)]
    for data in (TensorDataset(*DATA), arrays, listed):
        assert differences([train(data, 0)], [first]) < CLOSE


def test_a_global_generator_changes_nothing_and_is_not_changed():
    torch.manual_seed(0)
    first = training(mlp)(DATA, 7)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    again = training(mlp)(DATA, 7)
    assert torch.equal(torch.get_rng_state(), state)
    assert differences([first], [again]) == 0.0


def test_a_model_that_is_given_is_where_each_training_starts():
    start = mlp()
    kept = [parameter.clone() for parameter in start.parameters()]
    train = training(start, learning_rate=1e-9, noise_multiplier=0.0)
    assert differences(train.many([DATA] * 2, [0, 1]), [start, start]) < CLOSE
    given, copied = (training(each).many([DATA] * 2, [1, 2]) for each in (start, lambda: start))
    assert differences(given, copied) == 0.0 < differences(copied[:1], copied[1:])
    assert all(torch.equal(a, b) for a, b in zip(start.parameters(), kept, strict=True))


def test_a_resumed_block_is_trained_as_a_whole(tmp_path):
    rows = drive(training(mlp), tmp_path / "undisturbed", 18, block=6)
    sizes = []

    class Interrupted(DPSGDMany):
        def many(self, data_sets, seeds):
            sizes.append(len(seeds))
            if len(sizes) == 3:
                signal.raise_signal(signal.SIGINT)
            return super().many(data_sets, seeds)

    train = Interrupted(**vars(training(mlp)))
    with pytest.raises(KeyboardInterrupt):
        drive(train, tmp_path / "resumed", 18, block=6)
    store = TrainingStore(tmp_path / "resumed", Plan(0, 12, 3), {"train": "this one"})
    assert store.finished == 12
    store.add([rows[14]])  # a part of the block
    store.close()
    resumed = drive(train, tmp_path / "resumed", 18, block=6)
    assert (sizes, [f[0] for f in facts(resumed)]) == ([6, 6, 6, 6], [f[0] for f in facts(rows)])
    scores = [[row.scores[0] for row in each] for each in (resumed, rows)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-5)
    assert len(set(scores[0])) == 18


def test_it_is_sent_to_a_process_and_has_a_digest_of_its_settings():
    worlds = worlds_of(DATA, Blank(label=1), "add_remove")
    block = next(Plan(0, 4, 4).blocks())
    work = Work(training(mlp), worlds)
    sent = [*pickle.loads(packed(work)).run(block)]
    scores = [[o.scores[0] for o in outcomes] for outcomes in (sent, work.run(block))]
    assert scores[0] == pytest.approx(scores[1], abs=1e-5)
    assert digest_of(training(mlp)) == digest_of(training(mlp))
    others = [training(linear), training(mlp, steps=13), training(mlp, max_grad_norm=0.9)]
    assert len({digest_of(train) for train in [training(mlp), *others]}) == 4


def audited(noise_multiplier, trainings, store, seed=0):
    settings = {"noise_multiplier": noise_multiplier, "max_grad_norm": 1.0, "steps": 10, **FULL}
    claim = PrivacyClaim(noise_multiplier=4.0, sample_rate=1.0, steps=10, delta=1e-5)
    given = {"trainings": trainings, "store": store, "engine": ThisProcess(), "display": False}
    given["seed"] = seed
    return audit_training(training(known_start, **settings), DATA, claim, **given)


@pytest.mark.heavy
def test_an_audit_of_the_noise_that_is_claimed_passes(tmp_path):
    # 500 are too few on some machines, which round differently.
    audit = audited(4.0, 1500, tmp_path)
    assert audit.verdict.outcome == "PASS", str(audit)


test_a_bad_argument_is_named = refused_changes(
    training,
    {},
    ({"noise_multiplier": -1.0}, "noise_multiplier=-1.0"),
    ({"max_grad_norm": np.inf}, "max_grad_norm=inf must be a finite number > 0"),
    ({"sample_rate": 1.5}, "sample_rate=1.5"),
    ({"expected_batch_size": 0}, "expected_batch_size=0"),
    ({"steps": 0}, "steps=0"),
    ({"learning_rate": "fast"}, "learning_rate='fast'"),
    ({"memory_mib": 0}, "memory_mib=0"),
    ({"loss": 3}, "loss=3"),
    ({"model": lambda: 3}, "not 3"),
    ({"model": nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8))}, "BatchNorm"),
    ({"model": nn.Sequential(nn.Linear(64, 8), nn.Dropout(0.1))}, "Dropout"),
    ({"model": nn.Tanh()}, "no trained parameter"),
    ({"device": "gpu"}, "device='gpu' must be a device of torch"),
    ({"device": 1.5}, "device=1.5 must be a device of torch"),
)
test_bad_data_are_named = refusals(
    (lambda: training().many([DATA, DATA], [0]), "seeds has 1 entries for 2 data sets"),
    (lambda: training()((DATA[0],), 0), "these have 1 entries"),
    (lambda: training()([(torch.zeros(64), 1), (torch.zeros(63), 1)], 0), "records of one shape"),
    (lambda: training(device="cuda:99")(DATA, 0), "device='cuda:99' cannot hold this model here"),
    (lambda: training()(on_meta(), 0), "device='meta' of the data cannot hold this model here"),
    (lambda: training().many([DATA, on_meta()], [0, 1]), "data sets are on cpu and meta; give dev"),
)


def on_meta():
    return tuple(column.to("meta") for column in DATA)


def test_frozen_parameters_keep_the_values_of_their_seed():
    def frozen():
        model = mlp()
        model[0].requires_grad_(False)
        return model

    models = training(frozen, noise_multiplier=0.0).many(SETS[:2], SEEDS[:2])
    for model, seed in zip(models, SEEDS, strict=False):
        torch.manual_seed(seed)
        start = frozen()
        assert torch.equal(model[0].weight, start[0].weight)
        assert differences([model[2]], [start[2]]) > 0.001


# --- How accelerators draw, here on the CPU: one generator a block.


@pytest.fixture
def one_generator(monkeypatch):
    monkeypatch.setattr(vectorised, "_draws_blocks", lambda device: True)


@pytest.mark.usefixtures("one_generator")
@pytest.mark.parametrize("model", [mlp, conv])
def test_with_one_generator_a_model_is_the_plain_loop_of_the_batches_that_it_draws(model):
    train = training(model, noise_multiplier=0.0)
    draws = vectorised._BlockDraws(SEEDS, torch.device("cpu"))
    drawn = [draws.poisson([len(data[1]) for data in SETS], 0.2).tolist() for _ in range(STEPS)]
    loss = nn.functional.cross_entropy
    plain = []
    for number, (data, seed) in enumerate(zip(SETS, SEEDS, strict=True)):
        batches = [[record for record in step[number] if record >= 0] for step in drawn]
        plain.append(looped(train, data, seed, loss, batches))
    assert differences(train.many(SETS, SEEDS), plain) < CLOSE


def test_full_batches_without_noise_do_not_depend_on_how_numbers_are_drawn(monkeypatch):
    train = training(mlp, noise_multiplier=0.0, **FULL)
    own = train.many(SETS, SEEDS)
    monkeypatch.setattr(vectorised, "_draws_blocks", lambda device: True)
    assert differences(train.many(SETS, SEEDS), own) == 0.0


def test_one_generator_draws_each_record_of_each_model_at_the_sampling_rate():
    draws = vectorised._BlockDraws([7], torch.device("cpu"))
    sizes, rate, steps = [60, 61] * 200, 0.2, 20
    counts = torch.zeros(len(sizes), max(sizes))
    for _ in range(steps):
        index = draws.poisson(sizes, rate)
        ended = (index < 0).int().diff(dim=1) >= 0
        assert ended.all()  # padding comes last
        padded = torch.where(index < 0, max(sizes), index)
        counts += torch.zeros(len(sizes), max(sizes) + 1).scatter_(1, padded, 1.0)[:, :-1]
    assert not counts[::2, 60:].any()
    # Chi-square of records' and of models' counts, 5 standard deviations wide.
    for total, each in ((counts[:, :60].sum(0), 400 * steps), (counts[1::2].sum(1), 61 * steps)):
        squares = (total - each * rate).square().sum() / (each * rate * (1 - rate))
        assert abs(float(squares) - len(total)) < 5 * (2 * len(total)) ** 0.5
    pairs = float((counts[0::2, :60] - 4).mul(counts[1::2, :60] - 4).mean())
    assert abs(pairs) < 5 * steps * rate * (1 - rate) / 12_000**0.5  # models are independent


@pytest.mark.usefixtures("one_generator")
def test_with_one_generator_all_noise_has_its_variance_and_is_independent():
    train = training(known_start(), sample_rate=1e-6)
    models = train.many([DATA] * 200, list(range(200)))
    noise = torch.stack([model.weight.detach().flatten() for model in models])
    deviation = 0.8 * 0.5 / 12 * STEPS**0.5
    assert float(noise.std()) == pytest.approx(deviation, rel=5 / (2 * noise.numel()) ** 0.5)
    assert float(noise.mean(1).std()) == pytest.approx(deviation / 640**0.5, rel=5 / 400**0.5)
    assert float(noise.mean(0).std()) == pytest.approx(deviation / 200**0.5, rel=5 / 1280**0.5)


@pytest.mark.usefixtures("one_generator")
def test_with_one_generator_a_block_is_that_of_its_seeds_and_no_other_blocks():
    train = training(known_start())
    first, again = (train.many([DATA] * 2, [5, 6]) for _ in range(2))
    assert differences(first, again) == 0.0
    for seeds in ([7, 6], [5, 7], [5], [5, 6, 7]):
        others = train.many([DATA] * len(seeds), seeds)
        for one, other in zip(first, others, strict=False):
            assert differences([one], [other]) > 0.01


@pytest.mark.usefixtures("one_generator")
def test_an_audit_with_one_generator_finds_half_the_noise(tmp_path):
    audit = audited(2.0, 400, tmp_path)
    assert audit.verdict.outcome == "VIOLATION"
    assert audit.trainings <= 300


class OnADevice(torch.Tensor):
    """A tensor that NumPy cannot read before it is copied to the CPU."""

    def __array__(self, *_):
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def cpu(self):
        return self.as_subclass(torch.Tensor)


@pytest.mark.usefixtures("one_generator")
@pytest.mark.parametrize("canary", [Crafted(), Blank(), Mislabeled()])
def test_data_of_a_device_are_audited(canary, tmp_path):
    data = tuple(column.as_subclass(OnADevice) for column in DATA)
    claim, given = (9.0, 1e-5), {"trainings": 12, "engine": ThisProcess(), "display": False}
    audit = audit_training(training(), data, claim, canary=canary, store=tmp_path, **given)
    assert (audit.trainings, audit.failures) == (12, 0)
    for one, other in zip(
        canary.records(Records(data)), canary.records(Records(DATA)), strict=True
    ):
        assert torch.equal(one[0].cpu(), other[0])


def test_arrays_of_doubles_are_trained_and_scored_by_a_model_of_floats(tmp_path):
    arrays = (DATA[0].double().numpy(), DATA[1].numpy())
    given = {"trainings": 12, "engine": ThisProcess(), "display": False}
    audit = audit_training(training(), arrays, (9.0, 1e-5), store=tmp_path, **given)
    assert (audit.trainings, audit.failures) == (12, 0)


def test_a_store_of_another_device_is_refused_and_both_are_named(monkeypatch, tmp_path):
    audited(4.0, 4, tmp_path / "cpu")
    monkeypatch.setattr(vectorised, "_draws_blocks", lambda device: True)
    audited(4.0, 4, tmp_path / "block")
    there = r"another device \(there cpu; here cpu, one generator a block\); give store="
    with pytest.raises(StoreError, match=there):
        audited(4.0, 4, tmp_path / "cpu")
    monkeypatch.undo()
    here = r"another device \(there cpu, one generator a block; here cpu\); give store="
    with pytest.raises(StoreError, match=here):
        audited(4.0, 4, tmp_path / "block")


def test_a_device_counts_in_the_digest_and_none_is_that_of_stores_before_there_was_one():
    digests = [digest_of(training(device=device)) for device in (None, "cpu", "cuda")]
    assert len({*digests}) == 3
    new = ("device", "memory_mib")
    before = make_dataclass("DPSGDMany", [f.name for f in fields(DPSGDMany) if f.name not in new])
    before.__module__ = DPSGDMany.__module__  # a class of the library counts by its name
    values = {f.name: getattr(training(), f.name) for f in fields(before)}
    assert digest_of(before(**values)) == digests[0]
    assert training(device="cuda").drawn_on(DATA) == "cuda, one generator a block"
    assert training(device="cuda:1").drawn_on(DATA) == "cuda, one generator a block"
    assert training().drawn_on(on_meta()).startswith("meta")  # that of the data
    assert training().drawn_on(DATA) == training().drawn_on([(np.zeros(64), 1)]) == ""
