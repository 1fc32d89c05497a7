"""The exceptions that reach a user as a sentence instead of a traceback."""


class InputError(ValueError):
    """A config, file, message or tensor is wrong; the text says what, where and what to do."""


class WriteError(InputError):
    """A file cannot be written: the disk is full, or the folder is not writable."""
