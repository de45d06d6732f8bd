"""Mutation testing of the core: small wrong changes, each of which some test or the simulator has to notice.

python -m tests.mutants --help
"""
