"""The paths and messages of hosted voices, so that their clients work with another URL.

Read `dialect` (what a dialect is, and what its routes share), `letters` (times of letters), then
`elevenlabs`, `cartesia` and `deepgram`, which only translate. `server.session` has the contexts.
"""
