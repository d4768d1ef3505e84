"""Everything that can go wrong by somebody's input, as one small family of exceptions."""


class EyrieError(Exception):
    """Base of the errors below; its text is one sentence for the person who can mend it."""


class ConfigError(EyrieError):
    """A setting is wrong: the text names the key, the value and what is allowed."""


class CheckpointError(EyrieError):
    """A checkpoint cannot be used: the text names the file, tensor or field."""


class RequestError(EyrieError):
    """A request cannot be honoured: the text names the parameter.

    `param` is the request's field at fault, as OpenAI's error object reports it.
    """

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code

    def __reduce__(self) -> tuple[type["RequestError"], tuple[str, str | None, str | None]]:
        # Errors cross process boundaries; the default would keep only the first argument.
        return type(self), (self.message, self.param, self.code)


class EngineDeadError(EyrieError):
    """The engine's step failed; it serves nothing until it is rebuilt."""
