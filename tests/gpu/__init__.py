"""Tests that need an NVIDIA GPU, torch and Triton; they are skipped where there is none."""
