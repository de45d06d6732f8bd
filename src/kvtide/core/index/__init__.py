"""The index of host blocks: which key is where, who may write it, who reads it."""

from __future__ import annotations
