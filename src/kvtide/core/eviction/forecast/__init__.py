"""The default policy: what will be used soonest stays, judged by when and how often its kind was used before."""

from __future__ import annotations
