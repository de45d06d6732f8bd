"""Configuration: what is accepted, and that every refusal names the option, the value and what was expected."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from kvtide.core import (
    OPTIONS,
    POLICIES,
    ChunkedLocal,
    FullAttention,
    Geometry,
    Group,
    OffloadConfig,
    SlidingWindow,
    StateSpace,
)
from kvtide.errors import ConfigError, KVTideError
from kvtide.options import parse_choice, parse_count, parse_flag, parse_size

GIB = 1024**3


def geometry(**changes: Any) -> Geometry:
    return Geometry(**{"groups": (FullAttention(16),), "block_bytes": 1000, "device_blocks": 100, **changes})


def build(options: dict[str, object] | None = None, **changes: Any) -> OffloadConfig:
    return OffloadConfig.build(geometry(**changes), {"host": 10_000, **(options or {})})


def refuse(error: pytest.ExceptionInfo[ConfigError], option: str, value: object, expected: str) -> None:
    assert error.value.option == option
    assert error.value.value == value
    assert expected in error.value.expected
    written = option if value is None else f"{option}={value!r}"
    assert str(error.value) == f"{written}: expected {error.value.expected}"


# ---------------------------------------------------------------------- sizes


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (1, 1),
        (4096, 4096),
        ("4096", 4096),
        ("4096B", 4096),
        ("64GiB", 64 * GIB),
        ("64G", 64 * GIB),
        ("64Gi", 64 * GIB),
        ("64gib", 64 * GIB),
        (" 64 GiB ", 64 * GIB),
        ("64GB", 64_000_000_000),
        ("1.5GB", 1_500_000_000),
        ("0.5KiB", 512),
        ("500 MB", 500_000_000),
        ("3kb", 3_000),
        ("2MiB", 2 * 1024**2),
        ("1TB", 10**12),
        ("1.5TiB", 3 * 1024**4 // 2),
        ("2PiB", 2 * 1024**5),
        ("1P", 1024**5),
        ("1PB", 10**15),
    ],
)
def test_sizes_are_read_with_decimal_and_binary_units(value: object, size: int) -> None:
    assert parse_size("host", value) == size


@pytest.mark.parametrize(
    "value",
    [
        *(0, -1, -(64 * GIB), 1.5, float("nan"), float("inf"), True, False, None, [], {}, b"64GiB"),
        *("", "lots", "GiB", "-1GiB", "0", "0GiB", "64 Gi B", "64XB", "1e9", "1_000", "0x10", "1.GB", ".5GB"),
        *("64GiB!", "64GiB 1", "1,5GB", "٣GiB", "inf", "nan", "0.0001B", "64GiB\n64GiB", "12QB"),
    ],
)
def test_what_is_not_a_size_above_zero_is_refused(value: object) -> None:
    with pytest.raises(ConfigError) as error:
        parse_size("host", value)
    assert error.value.option == "host"
    assert error.value.value is value
    assert "64GiB" in error.value.expected
    assert "units are KiB to PiB, and KB to PB" in error.value.expected


@given(st.one_of(st.text(), st.from_regex(r"[0-9]+(\.[0-9]+)?\s*[kKmMgGtTpP]?i?[bB]?", fullmatch=True)))
@example("9" * 5_000)
@example("9" * 400 + ".5GiB")
@example("1" + "0" * 308 + ".0TiB")
def test_any_text_is_a_size_or_refused(value: str) -> None:
    try:
        assert parse_size("host", value) > 0
    except ConfigError as refusal:
        error = refusal
    else:
        return
    assert error.value == value


# ---------------------------------------------------------------------- numbers, words, flags


@pytest.mark.parametrize("value", [0, -1, True, False, "5", 1.0, None, [1]])
def test_a_count_is_a_whole_number_and_no_boolean_or_text(value: object) -> None:
    with pytest.raises(ConfigError) as error:
        parse_count("ranks", value)
    refuse(error, "ranks", value, "a whole number of at least 1")


def test_the_least_count_is_part_of_the_message() -> None:
    assert parse_count("window_tokens", 2, minimum=2) == 2
    with pytest.raises(ConfigError, match=r"window_tokens=1: expected a whole number of at least 2"):
        parse_count("window_tokens", 1, minimum=2)


@pytest.mark.parametrize("value", ["EAGER", "eager ", "", None, True, 1, ["eager"]])
def test_a_choice_is_one_of_the_words(value: object) -> None:
    with pytest.raises(ConfigError) as error:
        parse_choice("mode", value, ("eager", "lazy"))
    refuse(error, "mode", value, "one of eager, lazy")


@pytest.mark.parametrize("value", ["false", "true", "", 0, 1, None])
def test_a_flag_is_a_boolean_and_not_the_text_false(value: object) -> None:
    with pytest.raises(ConfigError) as error:
        parse_flag("events", value)
    refuse(error, "events", value, "without quotes")


# ---------------------------------------------------------------------- geometry


@pytest.mark.parametrize("name", ["block_bytes", "device_blocks", "ranks", "step_tokens"])
@pytest.mark.parametrize("value", [0, -5, True, "8", 2.0, None])
def test_every_number_of_the_geometry_is_checked(name: str, value: object) -> None:
    with pytest.raises(ConfigError) as error:
        geometry(**{name: value})
    refuse(error, name, value, "a whole number of at least 1")


def test_a_geometry_without_groups_is_refused() -> None:
    with pytest.raises(ConfigError) as error:
        geometry(groups=())
    refuse(error, "groups", (), "at least one attention group")


def test_more_groups_than_the_host_pool_can_tell_apart_are_refused() -> None:
    with pytest.raises(ConfigError) as error:
        geometry(groups=(FullAttention(4),) * 257)
    refuse(error, "groups", "257 groups", "at most 256")
    assert len(geometry(groups=(FullAttention(4),) * 256, device_blocks=256).groups) == 256


@pytest.mark.parametrize(
    ("group", "option", "value"),
    [
        (FullAttention(0), "block_tokens", 0),
        (FullAttention(-16), "block_tokens", -16),
        (StateSpace(True), "block_tokens", True),
        (SlidingWindow(16, 1), "window_tokens", 1),
        (SlidingWindow(16, 0), "window_tokens", 0),
        (ChunkedLocal(16, 0), "chunk_tokens", 0),
        (ChunkedLocal(16, 40), "chunk_tokens", 40),
        (ChunkedLocal(16, 8), "chunk_tokens", 8),
    ],
)
def test_a_group_that_makes_no_sense_is_refused(group: Group, option: str, value: object) -> None:
    with pytest.raises(ConfigError) as error:
        geometry(groups=(FullAttention(16), group))
    assert error.value.option == option
    assert error.value.value == value


@pytest.mark.parametrize(("sizes", "wrong"), [((16, 24), 16), ((24, 16), 16), ((16, 5, 8), 5), ((3, 2), 2)])
def test_block_sizes_that_do_not_divide_are_refused(sizes: tuple[int, ...], wrong: int) -> None:
    with pytest.raises(ConfigError) as error:
        geometry(groups=tuple(FullAttention(size) for size in sizes))
    refuse(error, "block_tokens", wrong, f"a divisor of the largest block size, {max(sizes)}")


@pytest.mark.parametrize("sizes", [(16, 16), (16, 32), (64, 16, 1), (8, 4, 2)])
def test_block_sizes_that_divide_the_largest_are_accepted(sizes: tuple[int, ...]) -> None:
    assert geometry(groups=tuple(FullAttention(size) for size in sizes)).ranks == 1


def test_a_layout_whose_first_common_boundary_does_not_fit_the_device_is_refused() -> None:
    groups = (FullAttention(16), StateSpace(1024))
    with pytest.raises(ConfigError) as error:
        geometry(groups=groups, device_blocks=64)
    refuse(error, "device_blocks", 64, "at least 65: the first boundary that all groups can resume from is at 1024")
    assert geometry(groups=groups, device_blocks=65).device_blocks == 65


def test_blocks_that_resuming_does_not_need_do_not_count_against_the_device() -> None:
    # At 1024 tokens the window needs one block of 64, the state space one state.
    assert geometry(groups=(SlidingWindow(16, 2), StateSpace(1024)), device_blocks=2).device_blocks == 2


# ---------------------------------------------------------------------- options


def test_the_defaults_are_eager_and_prefix_aware() -> None:
    config = build()
    assert (config.mode, config.policy) == ("eager", "prefix")
    assert (config.min_load_tokens, config.events, config.slots) == (0, False, 10)
    assert config.min_fetch_tokens == 128


@pytest.mark.parametrize(("step_tokens", "blocks"), [(4, 25), (16 * 12, 25), (16 * 20, 40), (16 * 45, 50)])
def test_by_default_stores_may_pin_a_quarter_of_the_device_or_what_two_steps_compute_up_to_half(
    step_tokens: int, blocks: int
) -> None:
    assert build(step_tokens=step_tokens).pin_budget_blocks == blocks


def test_blocks_that_are_packed_take_less_of_the_host() -> None:
    plain = build()
    packed = build(host_block_bytes=plain.geometry.block_bytes // 2)
    assert packed.slots == 2 * plain.slots
    assert packed.host_bytes == plain.host_bytes
    with pytest.raises(ConfigError, match="host_block_bytes"):
        geometry(host_block_bytes=0)


@pytest.mark.parametrize("device_blocks", [1, 3])
def test_a_tiny_device_still_has_a_pin_budget(device_blocks: int) -> None:
    assert build(device_blocks=device_blocks).pin_budget_blocks == 1


def test_every_option_has_its_effect() -> None:
    config = build({"mode": "lazy", "policy": "lru", "pin_budget": 7, "min_load_tokens": 64, "events": True})
    assert (config.mode, config.policy, config.pin_budget_blocks) == ("lazy", "lru", 7)
    assert (config.min_load_tokens, config.events) == (64, True)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_can_be_chosen(policy: str) -> None:
    assert build({"policy": policy}).policy == policy


def test_host_is_shared_by_the_ranks_and_host_per_rank_is_not() -> None:
    whole = OffloadConfig.build(geometry(ranks=4), {"host": "64kB"})
    each = OffloadConfig.build(geometry(ranks=4), {"host_per_rank": "64kB"})
    assert (whole.slots, whole.host_bytes) == (16, 64_000)
    assert (each.slots, each.host_bytes) == (64, 256_000)


def test_f27_what_several_ranks_hold_alike_takes_host_memory_once() -> None:
    once = OffloadConfig.build(geometry(ranks=4, parts=1), {"host": "64kB"})
    assert (once.slots, once.host_bytes) == (64, 64_000)
    assert OffloadConfig.build(geometry(ranks=1), {"host": "64kB"}).slots == once.slots
    in_pairs = OffloadConfig.build(geometry(ranks=4, parts=2), {"host": "64kB"})
    assert (in_pairs.slots, in_pairs.host_bytes) == (32, 64_000)


def test_f27_host_per_rank_is_taken_for_every_rank_whoever_shares_it() -> None:
    each = OffloadConfig.build(geometry(ranks=4, parts=1), {"host_per_rank": "64kB"})
    assert (each.slots, each.host_bytes) == (256, 256_000)
    with pytest.raises(ConfigError) as error:
        OffloadConfig.build(geometry(ranks=4, parts=1), {"host_per_rank": 249})
    refuse(error, "host_per_rank", 249, "at least one block, 250 bytes")


@pytest.mark.parametrize("parts", [3, 8, 0, True, "2"])
def test_ranks_that_hold_the_same_are_as_many_for_every_part(parts: object) -> None:
    with pytest.raises(ConfigError, match="parts"):
        geometry(ranks=4, parts=parts)


def test_slots_are_rounded_down() -> None:
    assert build({"host": 1999}).slots == 1
    assert build({"host": 7999}, ranks=4).slots == 1


@pytest.mark.parametrize(
    ("option", "value", "least"), [("host", 3999, 4000), ("host", "3kB", 4000), ("host_per_rank", 999, 1000)]
)
def test_a_capacity_below_one_block_is_refused(option: str, value: object, least: int) -> None:
    with pytest.raises(ConfigError) as error:
        OffloadConfig.build(geometry(ranks=4), {option: value})
    refuse(error, option, value, f"at least one block, {least} bytes")


@pytest.mark.parametrize("options", [{}, {"mode": "lazy"}])
def test_no_capacity_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as error:
        OffloadConfig.build(geometry(), options)
    refuse(error, "host", None, "either host or host_per_rank")


def test_two_capacities_are_refused() -> None:
    with pytest.raises(ConfigError) as error:
        build({"host_per_rank": "1GiB"})
    refuse(error, "host", 10_000, "either host or host_per_rank")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *[(option, value) for option in ("host", "host_per_rank") for value in (-1, "-1GiB", "many", True, None, 1.5)],
        *[("mode", value) for value in ("Eager", "none", True, None)],
        *[("policy", value) for value in ("fifo", "LRU", None, 1)],
        *[("pin_budget", value) for value in (0, -1, "5", True, 2.5, None, 101)],
        *[("min_load_tokens", value) for value in (-1, "64", True, None)],
        *[("min_fetch_tokens", value) for value in (0, -1, "64", True, None)],
        *[("events", value) for value in ("false", "true", 0, 1, None)],
    ],
)
def test_a_bad_value_is_refused_by_name(option: str, value: object) -> None:
    options = {option: value} if option.startswith("host") else {"host": 10_000, option: value}
    with pytest.raises(ConfigError) as error:
        OffloadConfig.build(geometry(), options)
    assert error.value.option == option
    assert error.value.value == value
    assert error.value.expected


def test_who_writes_a_word_for_the_least_load_is_told_which_word_there_is() -> None:
    with pytest.raises(ConfigError) as error:
        build({"min_load_tokens": "never"})
    refuse(error, "min_load_tokens", "never", 'at least 0, or "auto"')
    assert build({"min_load_tokens": "auto"}).min_load_tokens is None


def test_a_pin_budget_above_the_device_pool_is_refused() -> None:
    assert build({"pin_budget": 100}).pin_budget_blocks == 100
    with pytest.raises(ConfigError) as error:
        build({"pin_budget": 101})
    refuse(error, "pin_budget", 101, "at most the device pool, 100 blocks")


@pytest.mark.parametrize(
    ("wrong", "near"),
    [("polcy", "policy"), ("Mode", "mode"), ("host_per_ranks", "host_per_rank"), ("pin_budget_blocks", "pin_budget")],
)
def test_an_unknown_option_is_refused_with_the_nearest_one(wrong: str, near: str) -> None:
    with pytest.raises(ConfigError) as error:
        build({wrong: "x"})
    refuse(error, wrong, "x", f'did you mean "{near}"?')
    assert all(name in error.value.expected for name in OPTIONS)


def test_an_unknown_option_that_is_like_no_other_gets_the_whole_list() -> None:
    with pytest.raises(ConfigError) as error:
        build({"zzzzzz": 1})
    assert "did you mean" not in error.value.expected
    assert all(name in error.value.expected for name in OPTIONS)


def test_a_refusal_is_a_kvtide_error_and_a_value_error() -> None:
    with pytest.raises(KVTideError):
        build({"host": 0})
    with pytest.raises(ValueError, match="host=0"):
        build({"host": 0})


def test_every_option_is_described() -> None:
    assert all(description.strip() for description in OPTIONS.values())
