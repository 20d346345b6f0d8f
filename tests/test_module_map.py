"""Test that each module has tests, and that the page that lists the tests is up to date."""

from __future__ import annotations

from tests.module_map import INDIRECT, MAP, REPOSITORY, find_tests, map_text, package_modules


def test_each_module_has_tests() -> None:
    without = [module for module in package_modules() if not find_tests(module)]
    assert not without, f"no test is named for these or imports them: add tests, or name those in INDIRECT: {without}"


def test_each_test_of_the_map_exists_and_is_required() -> None:
    """`INDIRECT` lists only existing modules that no test imports."""
    named = [test for tests in INDIRECT.values() for test in tests]
    assert [test for test in named if not (REPOSITORY / test).exists()] == []
    assert sorted(INDIRECT.keys() - set(package_modules())) == []
    direct = [module for module, tests in INDIRECT.items() if set(find_tests(module)) != set(tests)]
    assert not direct, f"tests import these by themselves, leave them out of INDIRECT: {direct}"


def test_map_page_is_up_to_date() -> None:
    assert MAP.read_text() == map_text(), "run `python -m tests.module_map`"


def test_module_is_covered_by_the_test_with_its_name() -> None:
    assert find_tests("sparklog/log/read/time_lookup.py")[0] == "tests/log/read/test_time_lookup.py"
    assert find_tests("sparklog/storage/no_such_module.py") == []
