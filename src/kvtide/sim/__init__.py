"""The simulator: the real core in seeded worlds, in virtual time, with checkers that share nothing with it.

Start reading at `simulation.py` (one world from beginning to end), then `engine.py` (one step) and `checkers/`.
`docs/engineers/simulation.md` explains the worlds and how to add a fault.
"""
