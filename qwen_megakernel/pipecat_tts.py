"""The Pipecat service under the name that users import. The code is in `pipecat`."""

from qwen_megakernel.pipecat.service import MegakernelTTSService
from qwen_megakernel.pipecat.settings import MegakernelTTSSettings

__all__ = ["MegakernelTTSService", "MegakernelTTSSettings"]
