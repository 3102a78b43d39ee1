"""The commands, one file each; app/cli.py has the table."""
