"""One root for every error of the project; each child carries a stable code and the HTTP status it becomes."""

from __future__ import annotations


class SsdClusterError(Exception):
    """Root of all errors raised on purpose.

    Attributes:
        code: stable machine-readable name.
        http_status: status of the response when the error reaches an HTTP client.
        param: name of the offending request field or configuration key, if there is one.
    """

    code = "internal_error"
    http_status = 500

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class ConfigError(SsdClusterError):
    """A configuration is wrong; raised at the edge, before anything starts."""

    code = "invalid_config"


class InvalidRequest(SsdClusterError):
    """A request is malformed or asks for something impossible; raised before scheduling."""

    code = "invalid_request"
    http_status = 400


class UnsupportedField(InvalidRequest):
    """A request uses a field that is not supported yet."""

    code = "unsupported_field"


class ContextTooLong(InvalidRequest):
    """Prompt plus max_tokens does not fit the context or the KV cache."""

    code = "context_length_exceeded"


class ModelNotFound(SsdClusterError):
    """The request names a model that is not served here."""

    code = "model_not_found"
    http_status = 404


class Unauthorized(SsdClusterError):
    """A request carries no valid API key."""

    code = "invalid_api_key"
    http_status = 401


class Overloaded(SsdClusterError):
    """Too many requests are queued."""

    code = "overloaded"
    http_status = 429


class EngineStopped(SsdClusterError):
    """The engine is shutting down or has failed; the request cannot finish here."""

    code = "engine_stopped"
    http_status = 503


class CheckpointError(SsdClusterError):
    """A model checkpoint or a weights download is missing, broken or of an unsupported family."""

    code = "bad_checkpoint"


class PairMismatch(SsdClusterError):
    """Target and draft do not fit together; the message names the first difference."""

    code = "pair_mismatch"


class OutOfBlocks(SsdClusterError):
    """The KV pool has too few free blocks; the scheduler preempts or the draft refuses the session."""

    code = "out_of_kv_blocks"


class NumericalError(SsdClusterError):
    """A row of logits leaves no token to draw: NaN, infinite, or everything banned; raised where a token is drawn."""

    code = "numerical_error"


class RankError(SsdClusterError):
    """Another rank of a tensor-parallel model is gone or does not answer; the model cannot run any more."""

    code = "rank_failed"
    http_status = 503


class LinkError(SsdClusterError):
    """The link between a target and a draft failed."""

    code = "link_error"


class LinkClosed(LinkError):
    """The stream has ended; nothing more can be sent on it."""

    code = "link_closed"


class InvalidFrame(LinkError):
    """A peer sent something that does not pass validation."""

    code = "invalid_frame"


class StartupError(SsdClusterError):
    """A command cannot start (busy port, missing file, too few cores, a second start); the message says what to do."""

    code = "startup_failed"
