"""Speech over HTTP, WebSocket and Wyoming, and on Ray Serve.

Read `app` first (the routes), then `service` (engine, voices and limits), `schemas` (what clients
send), `active_speech` and `responses` (what they get), `encoders` (audio formats), `admission` (the
queue), `error_responses`, `middleware`, `metrics`, `voices` and `settings`. `serving` runs uvicorn.
`utterance` has texts that arrive in pieces, `session` the WebSockets that take them: `websocket` is
our own, `dialects` has those of hosted voices. `wyoming_server` and `ray_serve` serve the rest.

Other rooms use `create_app`, `serve` and `ServerSettings`.
"""
