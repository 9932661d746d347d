import os

# Before gRPC is imported, which reads it then: its own lines on stderr are not records of the log.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
