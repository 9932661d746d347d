"""Accept-Language: Korean unless English is preferred."""

import pytest

from gateway.http.language import preferred_locale


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("", "ko"),
        ("ko-KR,ko;q=0.9,en-US;q=0.8,en;q=0.7", "ko"),
        ("en-US,en;q=0.9,ko;q=0.8", "en"),
        ("en;q=0.8, ko;q=0.9", "ko"),
        ("EN-gb", "en"),
        ("en, ko", "en"),
        ("ko, en", "ko"),
        ("fr, de;q=0.9", "ko"),
        ("fr, en;q=0.1", "en"),
        ("*", "ko"),
        ("*, en;q=0.5", "ko"),
        ("en;q=0", "ko"),
        ("ko;q=0, en;q=0.1", "en"),
        ("en;q=banana, ko;q=0.1", "ko"),
        ("en;q=5, ko;q=0.1", "ko"),
        ("english", "ko"),
        (";;;,,=", "ko"),
    ],
)
def test_the_best_of_ours_wins(header, expected):
    assert preferred_locale(header, "ko") == expected


def test_the_default_is_a_setting():
    assert preferred_locale("", "en") == "en"
    assert preferred_locale("*", "en") == "en"
    assert preferred_locale("ko;q=0.1", "en") == "ko"
