"""The second family: a Qwen2.5 language model that speaks in SNAC codes, one voice per checkpoint.

docs/sheen.md goes from a folder of recordings to speech. Importing this loads nothing heavy.
"""
