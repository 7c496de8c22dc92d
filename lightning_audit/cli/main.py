"""The command `lightning-audit`."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from lightning_audit import __version__
from lightning_audit.cli.options import add_max_values, positive, positive_int, whole
from lightning_audit.cli.output import Unbroken, own_fault, refused
from lightning_audit.results.audit_report import EXIT_CODES

#: Names of the bounds, as the help lists them.
METHODS = "fdp_cp, fdp_pooled_cp, fdp_bayes, fdp_t, eps_cp, eps_jeffreys, eps_bayes, katz"
#: Names of those for many canaries of one training.
ONE_RUN_METHODS = "one_run, one_run_fdp, one_run_mu, white_box, gaussian_pair"
#: Trainings at a time where nothing is said; each takes half a gigabyte.
_JOBS = 8
#: Exit code of a command that Ctrl-C ended, as shells have it.
_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: the command line, None for the process's own.

    Returns:
        Exit code: 0 for a pass, 1 for a violation or a selftest that fails, 2 for an inconclusive
        or unreadable report, for scores that cannot be read, or a selftest that cannot run.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    for name, value in vars(options).items():
        if value in ([], [[]]):  # what argparse makes of `--option=--`
            parser.error(f"--{name.replace('_', '-')} needs a value")
    output: Any = Unbroken(sys.stdout)
    with contextlib.redirect_stdout(output):
        try:
            code: int = options.run(options)
        except MemoryError:
            code = refused("the input takes more memory than there is; give less of it")
        except Exception as error:  # a traceback's exit code is 1, that of a violation
            code = refused(own_fault(error))
        output.flush()
    return code


def _bound(options: argparse.Namespace) -> int:
    from lightning_audit.cli import bound_command  # loads scipy, which a gate does not need

    return _printed(bound_command.run, options, bound_command.BoundError)


def _check(options: argparse.Namespace) -> int:
    from lightning_audit.cli import check_command

    return check_command.run(options)


def _epsilon_star(options: argparse.Namespace) -> int:
    from lightning_audit.cli import epsilon_star_command

    return _printed(epsilon_star_command.run, options, epsilon_star_command.EpsilonStarError)


def _mcmc(options: argparse.Namespace) -> int:
    from lightning_audit.cli import mcmc_command

    return _printed(mcmc_command.run, options, mcmc_command.McmcError)


def _power(options: argparse.Namespace) -> int:
    from lightning_audit.cli import power_command

    return _printed(power_command.run, options, power_command.PowerError)


def _printed(run: Callable[[Any], str], options: Any, error_class: type[Exception]) -> int:
    """Exit code of a command that prints what it computes."""
    try:
        print(run(options))
    except error_class as error:
        return refused(error)
    return EXIT_CODES["PASS"]


def _selftest(options: argparse.Namespace) -> int:
    try:  # loads torch and Lightning, which a gate does not need
        from lightning_audit.cli import selftest_command
    except ImportError as error:
        return refused(f"selftest cannot run: {error}")
    try:
        return selftest_command.run(options)
    except selftest_command.SelftestError as error:
        return refused(error)
    except KeyboardInterrupt:
        print("lightning-audit: interrupted; every training was ended", file=sys.stderr)
        return _INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lightning-audit", description="Gate on the privacy of a DP-SGD training."
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    check = commands.add_parser(
        "check",
        help="show a report; exit code 0 for PASS, 1 for VIOLATION, 2 for INCONCLUSIVE",
        description="Show a report and exit with its verdict: 0 for PASS, 1 for VIOLATION, "
        "2 for INCONCLUSIVE or a report that cannot be read.",
    )
    check.add_argument(
        "report", help="a report.json, or a folder, of whose trainings the worst counts"
    )
    check.add_argument(
        "--max-epsilon",
        type=positive,
        metavar="X",
        help="fail as well if the proved or the spent epsilon exceeds X",
    )
    check.set_defaults(run=_check)
    bound = commands.add_parser(
        "bound",
        help="a lower bound on epsilon from an attack's scores, by name",
        description="Lower bound on the epsilon of one observation, from the scores of an attack "
        "with and without the canary. Exits with 0, or with 2 if it cannot be computed.",
    )
    bound.add_argument(
        "scores",
        help="an .npz with scores_in and scores_out, a .csv with the columns score and in, an "
        "audit's observations.npz or its report.json",
    )
    bound.add_argument(
        "--method",
        required=True,
        metavar="NAME",
        help=f"one of {METHODS}; or, for many canaries of one training, of {ONE_RUN_METHODS}",
    )
    bound.add_argument("--delta", required=True, type=float, help="delta of the epsilon, in (0, 1)")
    bound.add_argument(
        "--significance",
        type=float,
        default=0.05,
        help="probability that the bound is wrong (default: 0.05)",
    )
    bound.add_argument(
        "--threshold",
        metavar="CHOICE",
        help="how the threshold is chosen: a number, several with commas, split, multi_split, "
        "berk_jones, dkw, or max, which is no valid bound (default: 0.5 for observations, split "
        "for scores); none for fdp_t and the methods of one training",
    )
    bound.add_argument(
        "--guesses",
        metavar="N",
        help="canaries of one training to be guessed, those with the largest and the smallest "
        "scores; a number fixed beforehand, or several with commas (default: half, an "
        "eighth and a 32nd of them; with --sides in, a quarter, a 16th and a 64th)",
    )
    bound.add_argument(
        "--sides",
        choices=("both", "in"),
        default="both",
        help="both: half of them are guessed in and half out (default); in: all are guessed in, "
        "for an attack that tells members only",
    )
    bound.add_argument(
        "--roc", action="store_true", help="tell the AUROC and the TPR at small FPRs as well"
    )
    bound.add_argument("--json", action="store_true", help="print the bound as JSON")
    add_max_values(bound)
    bound.set_defaults(run=_bound)
    _add_epsilon_star(commands)
    _add_mcmc(commands)
    _add_power(commands)
    _add_selftest(commands)
    return parser


def _add_epsilon_star(commands: Any) -> None:
    star = commands.add_parser(
        "epsilon-star",
        help="Epsilon* of one model from the losses of its records; no bound",
        description="Epsilon*: how well a threshold on one model's losses tells training data "
        "from other data, beside what it reads without any difference. It describes the model and "
        "is no bound on the epsilon of its training. Exits with 0, or with 2 if it cannot be "
        "computed.",
    )
    star.add_argument(
        "losses",
        help="an .npz with losses_train and losses_population, or a .csv with the columns side "
        "(train or population) and loss",
    )
    star.add_argument("--delta", required=True, type=float, help="delta of Epsilon*, in [0, 1)")
    star.add_argument(
        "--clip",
        type=float,
        default=0.001,
        help="least error rate in a denominator, in [0, 0.5) (default: 0.001); it is a part of "
        "the number",
    )
    star.add_argument(
        "--components",
        type=positive_int,
        metavar="N",
        help="fit mixtures of N Gaussians to each side; without it, the losses' own ranks are used",
    )
    star.add_argument(
        "--permutations",
        type=positive_int,
        default=999,
        metavar="N",
        help="random deals of the losses to the sides (default: 999)",
    )
    star.add_argument("--seed", type=whole, default=0, help="seed of these deals (default: 0)")
    star.add_argument("--json", action="store_true", help="print the result as JSON")
    add_max_values(star)
    star.set_defaults(run=_epsilon_star)


def _add_mcmc(commands: Any) -> None:
    mcmc = commands.add_parser(
        "mcmc",
        help="posterior of epsilon and attack strength from the counts of several attacks",
        description="MCMC-DP-Est by quadrature: posterior of epsilon and of the strength of "
        "attacks that need not be the best ones possible, from their error counts. An estimate, "
        "no bound. Exits with 0, or with 2 if it cannot be computed.",
    )
    mcmc.add_argument(
        "counts",
        help="a JSON object with the lists false_negatives and false_positives, and n_in and "
        "n_out; it may have delta, cluster and groups",
    )
    mcmc.add_argument("--delta", type=float, help="delta in [0, 1) (default: the file's)")
    mcmc.add_argument(
        "--cluster",
        type=whole,
        metavar="M",
        help="decisions of one kind that depend on each other, such as all challenges of cross-fed "
        "attacks (default: the file's, else independent decisions)",
    )
    mcmc.add_argument(
        "--significance",
        type=float,
        default=0.1,
        help="one minus the level of the credible intervals (default: 0.1)",
    )
    mcmc.add_argument(
        "--epsilon-variance",
        type=float,
        default=10.0,
        metavar="V",
        help="variance of the half-normal prior of epsilon (default: 10)",
    )
    mcmc.add_argument(
        "--strength-shapes",
        type=float,
        nargs=2,
        default=(1.0, 1.0),
        metavar=("A", "B"),
        help="shapes of the Beta prior of the strength (default: 1 1)",
    )
    mcmc.add_argument(
        "--max-attacks",
        type=positive_int,
        default=1000,
        metavar="N",
        help="attacks of different counts that are taken at most; each takes about 0.1 s "
        "(default: 1000)",
    )
    mcmc.add_argument("--json", action="store_true", help="print the result as JSON")
    mcmc.set_defaults(run=_mcmc)


def _add_power(commands: Any) -> None:
    power = commands.add_parser(
        "power",
        help="observations that it takes to tell that a claim is false",
        description="Readings of canaries, and steps, after which the audit's tests and the bounds "
        "of the literature tell that one step is not as private as claimed. For Gaussian noise, "
        "without simulation. Exits with 0, or with 2 if it cannot be computed.",
    )
    for name, what in (("claimed", "claimed for one step"), ("true", "that one step really has")):
        power.add_argument(
            f"--{name}-epsilon", required=True, type=float, metavar="X", help=f"epsilon {what}"
        )
    power.add_argument("--delta", required=True, type=float, help="delta of both, in (0, 1)")
    power.add_argument(
        "--target", type=float, default=0.95, help="probability to tell (default: 0.95)"
    )
    power.add_argument(
        "--significance",
        type=float,
        default=0.05,
        help="probability that a bound is wrong (default: 0.05)",
    )
    power.add_argument(
        "--audit-significance",
        type=float,
        default=1e-3,
        metavar="P",
        help="probability of a false alarm of the whole audit (default: 0.001)",
    )
    power.add_argument(
        "--canaries", type=whole, default=8, metavar="K", help="canaries a step (default: 8)"
    )
    power.add_argument("--plot", metavar="FILE", help="draw the power, as .png, .svg or .pdf")
    power.add_argument("--json", action="store_true", help="print the numbers as JSON")
    power.set_defaults(run=_power)


def _add_selftest(commands: Any) -> None:
    selftest = commands.add_parser(
        "selftest",
        help="train every known fault of DP-SGD, and see whether the audit names it",
        description="Train known faults of DP-SGD and healthy trainings under audit, in processes "
        "of their own. Exits with 0 if every fault was found and named "
        "and no healthy training was accused, with 1 if not, with 2 if it cannot run.",
    )
    selftest.add_argument(
        "--quick", action="store_true", help="two faults and one healthy training only"
    )
    selftest.add_argument(
        "--fault",
        action="append",
        metavar="NAME",
        help="this fault only; may be given several times (docs/faults.md lists them)",
    )
    selftest.add_argument(
        "--jobs",
        type=positive_int,
        default=min(os.cpu_count() or 1, _JOBS),
        metavar="N",
        help=f"trainings at a time (default: the number of processors, {_JOBS} at most)",
    )
    selftest.add_argument("--json", action="store_true", help="print the results as JSON")
    selftest.set_defaults(run=_selftest)


if __name__ == "__main__":
    sys.exit(main())
