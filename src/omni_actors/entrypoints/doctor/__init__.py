"""What keeps this machine from serving, or will: looked at without starting anything, told with a remedy each."""

from omni_actors.entrypoints.doctor.examine import examine
from omni_actors.entrypoints.doctor.report import Report, Section

__all__ = ["Report", "Section", "examine"]
