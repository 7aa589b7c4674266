from kbroker.metadata.principal import ANONYMOUS, Principal


def test_the_text_of_a_principal_has_kafkas_form() -> None:
    assert str(ANONYMOUS) == "User:ANONYMOUS"
    assert str(Principal("User", "alice")) == "User:alice"
