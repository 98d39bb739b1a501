"""The server as an application for Ray Serve's own tools; its arguments are the options of `serve`.

    serve run deploy.ray_serve:build model=demo-voice replicas=2 slots=4

or in a Serve config file:

    applications:
      - name: qwen_megakernel
        import_path: deploy.ray_serve:build
        args: {model: Qwen/Qwen3-TTS-12Hz-0.6B-Base, replicas: 2, max-replicas: 8, slots: 16}

Without Ray's tools, `python -m qwen_megakernel serve --ray --replicas 2` does the same.
"""

import os
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch reads this when it is imported

from ray.serve import Application

from qwen_megakernel.cli import main, serve
from qwen_megakernel.server import ray_serve


def build(args: dict[str, Any]) -> Application:
    """Return the application for options of `serve`, without dashes.

    Args:
        args: true sets a switch; a list gives an option that may be repeated, like voice-alias.
    """
    words = ["serve", "--ray"]
    for name, value in args.items():
        if value is True or value == "true":
            words.append(f"--{name}")
        else:
            for each in value if isinstance(value, list) else [value]:
                words += [f"--{name}", str(each)]
    options = serve.ray_options(main.parser().parse_args(words))
    return ray_serve.application(**options)
