"""The training loops: Stage I and retrieval-guided GRPO, and what they share (run folders, tracking, validation)."""
