"""The server as an application of Ray Serve's own tools; arguments are the options of `serve`.

    serve run deploy.ray_serve:build model=demo-voice replicas=2 slots=4

or in a Serve config file:

    applications:
      - name: qwen_megakernel
        import_path: deploy.ray_serve:build
        args: {model: Qwen/Qwen3-TTS-12Hz-0.6B-Base, replicas: 2, max-replicas: 8, slots: 16}

Where nothing but Python is at hand, `python -m qwen_megakernel serve --ray --replicas 2` does the
same.
"""

import os
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # which torch reads when it is imported

from ray.serve import Application

from qwen_megakernel.cli import main, serve
from qwen_megakernel.server import ray_serve


def build(args: dict[str, Any]) -> Application:
    """The application for options of `serve`, without their dashes; true stands for a switch."""
    words = ["serve", "--ray"]
    for name, value in args.items():
        if value is True or value == "true":
            words.append(f"--{name}")
        else:
            words += [f"--{name}", str(value)]
    options = serve.ray_options(main.parser().parse_args(words))
    return ray_serve.application(**options)
