"""What a checker raises."""

from __future__ import annotations


class Violation(Exception):
    def __init__(self, checker: str, text: str) -> None:
        super().__init__(f"{checker}: {text}")
        self.checker = checker
