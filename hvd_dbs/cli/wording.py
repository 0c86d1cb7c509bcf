"""Words for numbers."""


def counted(number: int, noun: str) -> str:
    """A number of things.

    Example:
        >>> counted(1, "rank"), counted(0, "rank")
        ('1 rank', '0 ranks')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"
