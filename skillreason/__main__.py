"""``python -m skillreason`` is the command line."""

from __future__ import annotations

from skillreason.cli import main

if __name__ == "__main__":
    main()
