"""`python -m lightning_audit`: the command `lightning-audit`."""

import sys

from lightning_audit.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
