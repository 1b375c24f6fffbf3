import gc

import gpumem
import pytest

# Whether the body of a test failed.
failed = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.when == "call":
        item.stash[failed] = report.failed
    return report


def pytest_report_header(config):
    return f"libgpumem {gpumem.version()} on the {gpumem.backend()} device, from {gpumem.library_path()[0]}"


def settle():
    gc.collect()
    gpumem.synchronize(device=True)
