"""The commands of `qwen-megakernel` and `python -m qwen_megakernel`. Only this room prints.

Read `main` first (the commands), then what they share: `parsing` (the parser and its types),
`options` (options, and the engine they describe) and `running` (text, output, errors, exit codes).
Each other module is the command of its name. No module imports torch before a command needs it.
"""
