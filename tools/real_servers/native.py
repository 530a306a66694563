"""llama.cpp's own server, from the package xllamacpp: `python -m tools.real_servers.native FILE PORT NAME`.

Keys and values are kept in float32 and flash attention is off; by default llama.cpp rounds both to 16 bits, which
changes log-probabilities by some 0.005. Runs in the environment of that server, where little else is installed.
"""

import signal
import sys

import xllamacpp


def serve(file: str, port: int, name: str) -> None:
    """Serve the model in a GGUF file until the process is ended."""
    options = xllamacpp.CommonParams()
    options.model.path = file
    options.model_alias = {name}
    options.hostnames = ["127.0.0.1"]
    options.port = port
    options.n_ctx = 0
    options.n_parallel = 1
    options.cpuparams.n_threads = 1
    options.cache_type_k = options.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    options.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server = xllamacpp.Server(options)
    print(server.listening_address, flush=True)
    signal.pause()


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), sys.argv[3])
