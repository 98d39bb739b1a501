"""The commands of `qwen-megakernel` and `python -m qwen_megakernel`. Only this room prints.

Read `main` first (the parser), then `options` (what commands share: options, errors, exit codes);
each other module is the command of its name. No module imports torch before a command needs it.
"""
