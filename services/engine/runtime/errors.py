"""What can go wrong before a runtime serves its first token.

ModelLoadError              a file of the model directory is missing, damaged or does not fit
└── UnsupportedModelError   the files are fine, but this runtime cannot compute the model
DeviceMissingError          the device that was asked for is not there

All end the start of the engine: they never travel over an RPC, so they carry no status.
"""


class ModelLoadError(Exception):
    """The model directory cannot be loaded; the message names the file to look at."""


class UnsupportedModelError(ModelLoadError):
    """The model needs attention, positions or weights that this runtime does not compute."""


class DeviceMissingError(Exception):
    """The device to compute on is not there; the message says what is."""
