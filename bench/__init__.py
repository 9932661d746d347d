"""`make bench`: what a call through Naru costs, beside a bare floor of the same shape, measured in one run.

The processes are those of production: generator, gateway, executor, endpoint. The floor's gateway and executor do what
cannot be left out (one HTTP handler, one server-streaming RPC, one HTTP POST) and nothing else.
"""
