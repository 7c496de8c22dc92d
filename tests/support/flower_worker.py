"""Runs the Flower example and prints what its reports say, as JSON in the last line."""

import json
import sys
from pathlib import Path

from places import EXAMPLES

from lightning_audit import AuditReport

if __name__ == "__main__":
    sys.path.insert(0, str(EXAMPLES))
    import flower_client

    folder = Path(sys.argv[1])
    code = flower_client.main(["--report-dir", str(folder)])
    reports = [AuditReport.load(path) for path in sorted(folder.glob("*/report.json"))]
    said = [[one.verdict.outcome, one.steps, one.epsilon_spent] for one in reports]
    print(json.dumps({"code": code, "reports": said}))
