"""Where things lie in the repository."""

from pathlib import Path

SUPPORT = Path(__file__).parent
REPOSITORY = SUPPORT.parents[1]
DATA = REPOSITORY / "tests" / "data"
DOCS = REPOSITORY / "docs"
EXAMPLES = REPOSITORY / "examples"
PACKAGE = REPOSITORY / "lightning_audit"
#: The modules of the package.
FILES = sorted(PACKAGE.rglob("*.py"))
