#!/usr/bin/env python3
"""The chat page in headless Chromium: `cargo xtask page`. With PAGE_SHOTS=DIR, screenshots are saved there."""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from chat_test import Chat
from reach_test import Reach
from talks_test import Talks
from tools_test import Tools

__all__ = ["Chat", "Reach", "Talks", "Tools"]

if __name__ == "__main__":
    unittest.main()
