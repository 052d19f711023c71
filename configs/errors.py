"""Which exceptions are a message to the user, and which are a defect with a traceback."""

from __future__ import annotations

EXPECTED_ERRORS = (ValueError, OSError, FloatingPointError)
"""What a user can put right, every named error of ours among them: shown as one line. Anything else keeps its traceback."""
