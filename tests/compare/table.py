"""Markdown tables, and the numbers in them."""

import math


class Table:
    def __init__(self, title, head):
        self.title = title
        self.rows = [head, ["---"] * len(head)]

    def row(self, cells):
        self.rows.append([str(cell).replace("|", "/").replace("\n", " ") for cell in cells])

    def __str__(self):
        lines = ["| " + " | ".join(row) + " |" for row in self.rows]
        return "\n".join([f"**{self.title}**", "", *lines, ""])


def quantile(values, percent):
    """The value that so many percent of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
