"""Word error rate, and the errors of times."""

import re


def words(text: str) -> list[str]:
    """Lower case, without punctuation except within words."""
    return re.findall(r"\w+(?:['-]\w+)*", text.lower())


def errors(truth: list[str], heard: list[str]) -> int:
    """The least number of words to substitute, insert and delete."""
    row = list(range(len(heard) + 1))
    for i, word in enumerate(truth, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(heard, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (word != other))
    return row[-1]


def matched(truth: list[tuple[str, float, float]], heard: list[tuple[str, float, float]]) -> list[tuple[int, int]]:
    """Pairs of equal words in an alignment with the fewest errors."""
    rows = [[j for j in range(len(heard) + 1)]]
    for i, (word, *_) in enumerate(truth, 1):
        row = [i]
        for j, (other, *_) in enumerate(heard, 1):
            row.append(min(rows[-1][j] + 1, row[-1] + 1, rows[-1][j - 1] + (word != other)))
        rows.append(row)
    pairs, i, j = [], len(truth), len(heard)
    while i and j:
        same = truth[i - 1][0] == heard[j - 1][0]
        if rows[i][j] == rows[i - 1][j - 1] + (not same):
            pairs += [(i - 1, j - 1)] if same else []
            i, j = i - 1, j - 1
        elif rows[i][j] == rows[i - 1][j] + 1:
            i -= 1
        else:
            j -= 1
    return pairs[::-1]


def spread(values: list[float]) -> str:
    """Mean, 95th percentile and maximum."""
    if not values:
        return "none"
    values = sorted(values)
    return (f"mean {sum(values) / len(values):.3f} s, 95% within {values[int(0.95 * (len(values) - 1))]:.3f} s, "
            f"largest {values[-1]:.3f} s ({len(values)} times)")
