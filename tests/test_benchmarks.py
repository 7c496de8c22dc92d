"""The figures that README and docs state, by the benchmarks that print them."""

import numpy as np
import pytest
from benchmark_modules import benchmarks
from page_reports import of_outcome
from stages import staged

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.usefixtures("short_report"),
    # Opacus, Lightning and torch remark on loaders, hooks and secure mode in every training.
    pytest.mark.filterwarnings("default"),
]


@pytest.fixture
def load():
    with benchmarks() as load:
        yield load


@pytest.mark.parametrize(("least", "trainings"), staged(heavy=[(3, 3)], nightly=[(18, 20)]))
@pytest.mark.parametrize(("factor", "limits"), [(0.8255, (20, 150)), (0.5, (5, 15))])
def test_too_small_a_noise_is_flagged_in_nearly_all_trainings(
    load, factor, limits, least, trainings
):
    detection = load("detection")
    assert detection.LIMITS[factor] == limits
    detection.quiet()
    found = [detection.steps_to_flag(factor, limits[1], seed) for seed in range(trainings)]
    for steps, limit in zip(zip(*found, strict=True), limits, strict=True):
        assert sum(s is not None and s <= limit for s in steps) >= least


@pytest.mark.nightly
def test_noise_that_goes_wrong_after_thousands_of_steps_is_flagged(load):
    late = load("late_faults")
    assert all(late.steps_to_flag(8000, 0.0, seed) == 1 for seed in range(3))
    assert all(late.steps_to_flag(8000, 0.8, seed) <= 60 for seed in range(3))


@pytest.mark.parametrize("width", staged(nightly=[64, 304]))
def test_a_million_parameters_are_audited(load, width):
    results = load("transformer").run(width)
    assert results["parameters"] >= 1_000_000 or width < 304
    assert results["correct"] in ("PASS", "INCONCLUSIVE")
    assert results["half noise"].startswith("VIOLATION: noise scale too small")


@pytest.mark.parametrize("seeds", staged(nightly=[1, 3]))
def test_the_audited_model_is_the_unaudited_one(load, seeds):
    drift = load("drift")
    results = drift.run(seeds, nets={"smooth net": drift.NETS["smooth net"]})
    assert results[f"smooth net, SGD, audited: largest of {seeds}"] <= 1e-6
    assert results[f"smooth net, Adam, audited: largest of {seeds}"] <= 1e-6


@pytest.mark.nightly
def test_black_box_audits_need_about_as_many_outputs_as_stated(load):
    black_box = load("black_box")
    for name in black_box.MECHANISMS:
        needed = sorted(black_box.outputs_needed(name, 0.5, seed) for seed in range(9))
        assert 150 < needed[4] < 700
        assert needed[-1] < 2000


@pytest.mark.parametrize("laws", staged(nightly=[30]))
def test_no_law_is_read_above_its_epsilon(load, laws):
    leakage = load("leakage_laws")
    rng = np.random.default_rng(1)
    drawn = [*leakage.FOUND, *(leakage.random_law(rng) for _ in range(laws))]
    for seed, law in enumerate(drawn):
        assert leakage.limit(law) <= 1.01 * law.epsilon, law
        found = leakage.simulated(law, 2, seed)
        assert all((one <= law.epsilon).all() for one in found.values()), law
    kept = leakage.simulated(leakage.KEPT, 2, 0)[0.05]
    assert (kept > 0.5 * leakage.KEPT.epsilon).all()


@pytest.mark.nightly
def test_the_first_name_of_a_fault_is_the_registrys(load):
    names = load("names")
    names.quiet()
    rows = names.rows(["small"], ["half_noise", "clip_after_average"])
    assert {row.configuration for row in rows} == {"small MLP", "small conv net"}
    results = [names.named(row, 2) for row in rows]
    assert [one.right for one in results] == [2] * 4
    page = names.markdown(results, "a command")
    assert "8 of 8 first names are the registry's" in page
    assert "| small MLP | `half_noise` | 2 of 2, step 1, 1 |" in page


def test_another_name_and_none_are_counted_as_wrong(load):
    names = load("names")
    (row,) = names.rows(["small MLP"], ["half_noise"])
    one = names.Named(row, ("noise_too_small", "no_noise", ""), (1, 2, 60))
    shown = "1 of 3 (else `no_noise`, `nothing found`), step 1, 2, 60"
    assert names.cells(one)[2:] == (shown,)


def test_a_step_runs_through_few_files_of_the_package(load):
    crossings = load("step_crossings").run()
    assert 0 < crossings["files, mean"] <= 26
    assert 0 < crossings["crossings, mean"] <= 160
    assert 0 < crossings["crossings, median"] <= 105


@pytest.mark.nightly
def test_the_memory_of_a_worker_stays_flat_over_many_trainings(load):
    results = load("many_trainings").run(trainings=60)
    assert results["failed"] == 0
    assert results["worker, MiB more in the second half of the trainings"] <= 10


@pytest.mark.nightly
def test_many_models_are_trained_at_once_without_failures(load):
    results = load("many_at_once").run(trainings=40, mlps=8, planned=2000)
    assert results["failed"] == 0
    assert results["the same with looks and report, at most 0.6"] <= 0.6


def test_the_page_of_a_large_report_is_small(load, tmp_path):
    page = load("report_page")
    _, size = page.seconds_of(page.large(of_outcome("VIOLATION")), tmp_path, repeats=1)
    assert size < 300_000
