"""`kvtide doctor`: looks at this machine and says what would keep a server from serving, and what to do about it.

A check finds out one thing (`base.Check`); `checkup` lists them all, `rounds` runs them, each within its deadline.
Checks read the machine through `machine.Machine`, so that tests can show them any machine.
"""
