"""The careful token count."""

from workers.agents.tokens import tokens_of


def test_letters_digits_and_other_scripts_are_counted_on_the_safe_side():
    assert tokens_of("") == 8
    assert tokens_of("The lamp burns") - 8 == 4
    assert tokens_of("1234567") - 8 == 7
    assert tokens_of("灯台") - 8 == 4
