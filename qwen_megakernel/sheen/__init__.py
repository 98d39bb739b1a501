"""The second family: a Qwen2.5 language model that draws SNAC codes, one voice per checkpoint.

Read `engine` first, then `decoder` (frames from tokens), `language_model` (the layers), `tokens`
and `codes` (how codes are tokens), `codec` (SNAC, streamed), `text_input` (phonemes), and
`model_folder` (a voice on disk). `training/` makes a voice. docs/sheen.md describes every step from
a folder of recordings to speech.

Other rooms take `SheenEngine` and `model_folder.is_sheen`; `cli` takes the commands' functions.
"""
