"""Sessions at once, for some seconds; `python -m tests.legacy.load` does it for longer."""

from tests.legacy.load import run


def test_no_session_gets_what_is_anothers_and_no_reply_is_lost() -> None:
    findings = run(sessions=20, rate=2, seconds=5)
    assert findings.fine, findings.text()
    assert findings.requests == 200
    assert findings.asked
