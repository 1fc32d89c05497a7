"""The one exception that reaches a user as a sentence instead of a traceback."""


class InputError(ValueError):
    """A config, file, message or tensor is wrong; the text says what, where and what to do."""
