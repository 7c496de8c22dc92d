"""Plugin of pytest for an environment without torch: what needs torch is skipped, and counted.

`make test-python TORCH=no` uses it, for interpreters that torch has no build for.
"""

from collections.abc import Generator
from typing import Any

import pytest

#: Packages that need torch, and torch.
ABSENT = ("torch", "opacus", "pytorch_lightning", "lightning")


def _lacks_torch(call: Any) -> bool:
    raised = call.excinfo.value if call.excinfo else None
    while raised is not None:
        if isinstance(raised, ModuleNotFoundError) and raised.name in ABSENT:
            return True
        raised = raised.__cause__ or raised.__context__
    return False


def pytest_pycollect_makemodule(module_path, parent):
    return _Module.from_parent(parent, path=module_path)


class _Module(pytest.Module):
    def _getobj(self) -> Any:
        try:
            return super()._getobj()
        except pytest.Collector.CollectError as error:
            if any(f"No module named '{name}'" in str(error) for name in ABSENT):
                pytest.skip("needs torch", allow_module_level=True)
            raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call) -> Generator[None, Any, Any]:
    report = yield
    if report.failed and _lacks_torch(call):
        report.outcome = "skipped"
        report.longrepr = (str(item.path), 0, "needs torch")
    return report
