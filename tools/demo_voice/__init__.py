"""How the demonstration voice is made: README.md beside this file has the recipe."""
