"""Checkers: what always holds (I1 to I9), watched from outside. They share nothing with the core."""
