"""Settings for every test. In: the command line. Out: golden renewal, one Hypothesis profile, a private cache
folder.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from tests import golden

# Machines differ in speed, so nothing is timed; the same examples every time, so a failure can be met again.
hypothesis_settings.register_profile(
    "interfuse",
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
hypothesis_settings.load_profile("interfuse")


def pytest_addoption(parser: pytest.Parser) -> None:
    """--renew-golden: write golden texts instead of comparing them."""
    parser.addoption("--renew-golden", action="store_true", help="write the golden texts of the tests that run")


def pytest_configure(config: pytest.Config) -> None:
    """Hand the option to the helper that tests call."""
    golden.SETTINGS.renew = bool(config.getoption("--renew-golden"))


@pytest.fixture(autouse=True, scope="session")
def _private_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the user's cache out of the tests: what one run built must not decide what the next one does."""
    folder: Path = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INTERFUSE_CACHE", str(folder))
        yield
