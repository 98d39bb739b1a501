"""The programs that made the demonstration voice. README.md beside this file has the recipe."""
