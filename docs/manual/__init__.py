"""Man pages and completion of bash, zsh and fish, from the parsers and the table of settings.

`scripts/manual FOLDER` writes them. It needs Python and this checkout, and nothing else.
"""
