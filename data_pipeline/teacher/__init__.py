"""The teacher that writes requests and rationales and judges records (C, D, G): models behind APIs, or rules without a model."""

from __future__ import annotations

from data_pipeline.teacher.api import ApiTeacher, open_teacher
from data_pipeline.teacher.config import TeacherConfig, validate_teacher
from data_pipeline.teacher.offline import OfflineTeacher
from data_pipeline.teacher.task import Teacher, TeacherResult, TeacherStopped, TeacherTask, Usage

__all__ = [
    "ApiTeacher",
    "OfflineTeacher",
    "Teacher",
    "TeacherConfig",
    "TeacherResult",
    "TeacherStopped",
    "TeacherTask",
    "Usage",
    "open_teacher",
    "validate_teacher",
]
