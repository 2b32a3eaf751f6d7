"""vLLM as a second engine, in an environment of its own and spoken to over HTTP.

    make vllm                                                 # .venv-vllm, from requirements-vllm.lock
    python -m model.inference.vllm NAME=FOLDER [--port 8001]  # a server on this machine alone
    client = VllmClient("http://127.0.0.1:8001")              # model/inference/vllm/client.py

``__main__.py``, ``process.py`` and ``client.py`` run in the project's environment, ``serve.py``,
``verbs.py``, ``worker.py`` and ``folder.py`` in vLLM's. What was run stands in docs/serving.md.
"""
