"""Why a block was not stored and why a token was not loaded (F4). Nothing is lost in silence."""

from __future__ import annotations

from enum import Enum


class NotStored(str, Enum):
    """Why a block that was computed is not on the host. Counted in blocks."""

    HOST_FULL = "host_full"
    """Every host slot is pinned, being written, or needed by what would be stored."""
    EVICTED_FROM_DEVICE = "evicted_from_device"
    """It had to wait (pin budget, failed copy, lazy mode), and the engine has reused the device block meanwhile."""
    PREFIX_MISSING = "prefix_missing"
    """A block before it could not be stored, so that this one would be of no use."""
    COPY_FAILED = "copy_failed"
    """The copy failed as often as it is tried."""
    OUT_OF_WINDOW = "out_of_window"
    """The engine gave it up as not needed any more before it could be stored."""
    NO_KEY = "no_key"
    """The engine gave no key for a block that was computed."""
    RESET = "reset"
    """It was computed before a reset, or on top of what was."""
    QUEUE_FULL = "queue_full"
    """Too many blocks were waiting for the pin budget already."""
    NOT_ADMITTED = "not_admitted"
    """No second request has asked for it so far (`admission`)."""
    STOPPED = "stopped"
    """A rank cannot copy any more, so nothing is stored."""
    NODE_AWAY = "node_away"
    """The node that keeps host blocks is not there, or went away before it had answered."""
    NODE_LATE = "node_late"
    """The node that keeps host blocks did not say in time where to store it, or a rank did not have its memory yet."""
    NOT_CERTAIN = "not_certain"
    """Something else was to bring a part of it, and its request was over before it was known whether that came."""
    UNPACKED_FULL = "unpacked_full"
    """It does not pack (`packing`), and on some rank the place for such blocks is full."""


class NotLoaded(str, Enum):
    """Why a token that a request needed was computed instead of loaded. Counted in tokens."""

    NOT_CACHED = "not_cached"
    """The host does not have its block."""
    STILL_STORING = "still_storing"
    """Its block is on its way to the host."""
    GROUP_CANNOT_RESUME = "group_cannot_resume"
    """Its block is there, but another attention group has no way to resume here."""
    LAST_TOKEN = "last_token"  # noqa: S105 (not a password)
    """It is there, but at least one token has to be computed."""
    BELOW_BREAK_EVEN = "below_break_even"
    """Loading so few tokens costs more than computing them (`min_load_tokens`)."""
    NOT_ACCEPTED = "not_accepted"
    """It was offered, and the engine took less."""
    COPY_FAILED = "copy_failed"
    """The copy failed, or an earlier load of the same request did."""
    RESET = "reset"
    """The cache was reset while it was being loaded."""
    NO_REPORT = "no_report"
    """A rank did not say in time what became of a copy. Until it has, nothing is loaded or stored."""
    TIER_LATE = "tier_late"
    """A tier below the host did not bring it in time."""
    TIER_NOT_ASKED = "tier_not_asked"
    """It may be below the host, and computing it was faster than asking, or too many requests waited already."""
    NODE_AWAY = "node_away"
    """The node that keeps host blocks is not there."""
    NODE_LATE = "node_late"
    """The node that keeps host blocks did not answer in time, or a rank did not get at its memory in time."""
    LEASES_FULL = "leases_full"
    """This engine keeps three quarters of the node's memory for loads: others need the rest to store."""


class NotSunk(str, Enum):
    """Why a block is not below host memory although the write policy wants it there. Counted in blocks."""

    FAILED = "failed"
    """The tier did not take it on every rank: it is full, switched off, or broken."""
    EVICTED = "evicted"
    """The host needed the slot before its turn came."""
    QUEUE_FULL = "queue_full"
    """Too many blocks were waiting to sink."""
    RESET = "reset"
    """The cache was reset while it waited to sink, or was sinking."""
