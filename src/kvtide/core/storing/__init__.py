"""From the device to the host: what is stored, when, and what becomes of it. Start reading at `stores.py`."""

from __future__ import annotations
