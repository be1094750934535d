"""``fencepost tokenizer``."""

import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial

import grpc.aio
from fencepost.tokenizer.v1 import tokenizer_pb2_grpc

from services import process, replicas
from services.tokenizer import models
from services.tokenizer.config import TokenizerSettings
from services.tokenizer.engines import Engine, Engines
from services.tokenizer.pool import EncodePool
from services.tokenizer.servicer import TokenizerServicer


@asynccontextmanager
async def build(config: TokenizerSettings, server: grpc.aio.Server) -> AsyncGenerator[Sequence[str]]:
    """Raises ModelFileError."""
    model = models.load_model(config.model, config.model_name, config.aliases, config.max_prompt_bytes)
    pool = EncodePool(config.encode_threads, config.encode_queue)
    try:
        make = partial(Engine, fingerprint=model.fingerprint)
        async with replicas.connect(config.engines, make, grace_s=config.request_timeout_s) as engines:
            # ExplainPrefix stays the generated one, which answers UNIMPLEMENTED.
            servicer = TokenizerServicer(config, model, pool, Engines(engines))  # pyright: ignore[reportAbstractUsage]
            tokenizer_pb2_grpc.add_TokenizerServiceServicer_to_server(servicer, server)
            yield ("fencepost.tokenizer.v1.TokenizerService",)
    finally:
        pool.close()


def main(argv: Sequence[str] | None = None) -> int:
    """The process; its exit status."""
    return process.main("tokenizer", TokenizerSettings, build, argv)


if __name__ == "__main__":
    sys.exit(main())
