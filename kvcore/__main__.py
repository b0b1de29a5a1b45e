"""``python -m kvcore`` is the command ``kvcore``."""

from __future__ import annotations

from kvcore.cli import main

if __name__ == "__main__":
    main()
