"""Checks for obstacles that keep this machine from serving, without starting anything; each finding has a remedy."""

from omni_actors.entrypoints.doctor.examine import examine
from omni_actors.entrypoints.doctor.report import Report, Section

__all__ = ["Report", "Section", "examine"]
