"""Every error a user can meet, with its exit code and HTTP status.

An error reads in up to three lines: what is wrong (with the value seen), why, and the hint.
"""


class QwenTTSError(Exception):
    """Base of all errors this package raises on purpose.

    Args:
        what: one line, what is wrong, with the value seen.
        why: one line, the cause or the consequence; may be empty.
        hint: one line, the command or change that helps; may be empty.
    """

    exit_code = 6  # 2 usage, 3 environment, 4 model files, 5 resources, 6 generation
    http_status = 500

    def __init__(self, what: str, why: str = "", hint: str = ""):
        self.what, self.why, self.hint = what, why, hint
        super().__init__("\n".join(line for line in (what, why, hint) if line))


class UsageError(QwenTTSError, ValueError):
    """An argument has a value that can never work."""

    exit_code = 2
    http_status = 400


class TaskError(UsageError):
    """The loaded checkpoint cannot do what was asked (cloning on CustomVoice, say)."""


class UnknownVoice(UsageError):
    """No such speaker in the checkpoint and no such voice file."""


class UnknownLanguage(UsageError):
    """The checkpoint has no id for this language."""


class EmptyText(UsageError):
    """Nothing to speak: the text is empty, or holds no letter and no digit."""


class TextTooLong(UsageError):
    """The text is longer than the engine accepts in one request."""

    http_status = 413


class RecordingError(UsageError):
    """Reference audio, its transcript or its codes cannot serve as a voice."""


class VoiceMismatch(UsageError):
    """A voice made for a checkpoint of another width or codec."""


class DatasetError(UsageError):
    """Recordings, or a file made of them, that no model can be trained on."""


class SetupError(QwenTTSError):
    """The machine lacks something: a GPU, a driver, a compiler."""

    exit_code = 3
    http_status = 503


class NoGPUError(SetupError):
    """A GPU was demanded and none is visible."""


class DriverError(SetupError):
    """The NVIDIA driver is older than this torch needs."""


class ArchError(SetupError):
    """The GPU's architecture is not supported by the kernel or by this torch."""


class BuildError(SetupError):
    """The kernel could not be compiled."""


class LaunchError(SetupError):
    """The GPU refused the kernel's cooperative grid."""


class GPULost(SetupError):
    """A fault after which CUDA fails every call of this process."""


class MissingPackageError(SetupError):
    """An optional package is needed for what was asked."""


class ModelFilesError(QwenTTSError):
    """Model files are missing, unreachable, damaged or of another model."""

    exit_code = 4
    http_status = 503


class UnsupportedModel(ModelFilesError):
    """A Qwen3-TTS model this package does not run."""

    http_status = 400


class ResourceError(QwenTTSError):
    """Out of memory, disk or slots."""

    exit_code = 5
    http_status = 503


class OutOfMemory(ResourceError):
    """Not enough memory for the request or the model."""


class EngineBusy(ResourceError):
    """The waiting queue is full."""

    http_status = 429
    retry_after_s = 1  # when there may be room again; whoever can estimate it sets it


class Draining(ResourceError):
    """The server finishes what it has begun and takes nothing new."""


class NotReady(ResourceError):
    """The model is not loaded yet."""


class DeadlineExceeded(ResourceError):
    """A request was not over in the time it is given."""

    http_status = 504


class OutputError(ResourceError):
    """An output file or folder cannot be written."""


class GenerationError(QwenTTSError):
    """A stream failed while it was being generated; the engine stays usable."""


class KernelTimeout(GenerationError):
    """A grid barrier of the kernel expired."""

    http_status = 503


class TokenOrderError(GenerationError):
    """A model spoke audio tokens in an order that is no sound."""


class EngineClosed(GenerationError):
    """The engine was closed while, or before, this stream ran."""

    http_status = 503
