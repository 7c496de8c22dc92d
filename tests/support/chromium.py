"""Finds a browser for `make browser`; `python chromium.py` installs one if none is there."""

import os
import shutil
import subprocess
import sys

NAMES = ("chromium", "chromium-browser", "google-chrome")
INSTALL = ("apt-get", "install", "-y", "--no-install-recommends", "chromium")


def browser_on_path() -> str | None:
    """Path of the first browser of `NAMES` on the PATH."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def main() -> int:
    """Print the browser's path; install Debian's package if there is none and this is root."""
    if browser_on_path() is None and os.geteuid() == 0 and shutil.which(INSTALL[0]):
        # The lists of packages of a container are often empty or old.
        subprocess.run([INSTALL[0], "update"], check=False)
        subprocess.run(INSTALL, check=False)
    found = browser_on_path()
    if found is None:
        print(
            f"no browser ({', '.join(NAMES)}) is on the PATH; run: sudo {' '.join(INSTALL)}",
            file=sys.stderr,
        )
        return 1
    print(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
