"""Fencepost's services and the little that they share."""

import os

# gRPC's core writes lines of its own to standard error, for example about a taken port, which we name ourselves.
# It reads this as it is imported, hence here.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
