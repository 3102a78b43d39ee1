"""`flywheel promote`: the open turn's end, promotion or refusal."""

from app.commands.turn_ import command as turn

command = turn
