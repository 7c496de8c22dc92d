"""Figure of docs/estimators/power.md: the power of the audit's tests and of the bounds."""

from __future__ import annotations

from support import arguments

from lightning_audit.cli.main import main as command


def main():
    options = arguments(__doc__)
    options.out.mkdir(parents=True, exist_ok=True)
    claim = ("8", "12") if options.quick else ("1.27", "1.57")
    plot = str(options.out / "power.png")
    claimed = ["--claimed-epsilon", claim[0], "--true-epsilon", claim[1]]
    raise SystemExit(command(["power", *claimed, "--delta", "1e-5", "--plot", plot]))


if __name__ == "__main__":
    main()
