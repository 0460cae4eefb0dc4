"""The table that `make soak` prints, one row per check."""

import pytest

ROWS = []


@pytest.fixture
def table():
    """table(check, done, found): a row for the end of the session."""
    return lambda *row: ROWS.append(row)


def pytest_terminal_summary(terminalreporter):
    if not ROWS:
        return
    terminalreporter.section("soak")
    for row in [("check", "what was done", "what was found"), ("---", "---", "---"), *ROWS]:
        terminalreporter.write_line("| " + " | ".join(row) + " |")
