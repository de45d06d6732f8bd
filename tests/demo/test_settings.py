"""Bad sizes are refused by name, before anything is allocated."""

from __future__ import annotations

import pytest

from kvtide.demo import DemoSettings
from kvtide.errors import ConfigError
from tests.demo.support import tiny


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("conversations", 0),
        ("conversations", 10**12),
        ("turns", 1),
        ("prompt_tokens", -1),
        ("turn_tokens", 0),
        ("output_tokens", "many"),
        ("concurrency", 0),
        ("device_blocks", 0),
        ("device_blocks", 5),
        ("block_tokens", 0),
        ("host", "1B"),
        ("host", "a lot"),
        ("host", "900TiB"),
        ("policy", "magic"),
        ("ranks", 3),
        ("ranks", 8),
        ("seed", -1),
        ("window", 1),
    ],
)
def test_an_option_that_cannot_work_is_named_with_its_value(option: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        tiny(**{option: value})
    assert caught.value.option == option
    assert caught.value.value == value


def test_the_default_conversations_overflow_the_default_device_pool_and_fit_on_the_host() -> None:
    settings = DemoSettings()
    assert settings.unlimited_blocks > 2 * settings.device_blocks
    assert settings.unlimited_blocks * settings.engine(1).geometry().block_bytes < 256 * 2**20


def test_a_host_that_is_too_small_has_room_for_all_conversations_only_if_they_are_packed() -> None:
    settings = DemoSettings(packing=True).with_too_small_a_host()
    assert isinstance(settings.host, int)
    all_bytes = settings.unlimited_blocks * settings.engine(1).geometry().block_bytes
    assert all_bytes / 1.34 < settings.host < all_bytes / 1.32


def test_a_conversation_ends_with_all_prompts_and_all_outputs() -> None:
    assert tiny().longest_tokens == 48 + 2 * 9 + 3 * 4
