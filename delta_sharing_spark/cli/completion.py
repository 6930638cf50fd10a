"""Writes the scripts by which shells complete this command: commands, their options and the options' choices."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence

PROGRAM = "delta-sharing-spark"
SHELLS = ("bash", "zsh", "fish")


def completion_script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The script to be evaluated by ``shell``: commands, their options and the options' choices; else file names."""
    actions = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    commands = next(actions).choices
    if shell == "fish":
        return _fish(commands)
    script = _bash(commands)
    return f"autoload -U +X bashcompinit && bashcompinit\n{script}" if shell == "zsh" else script


def _options_of(command: argparse.ArgumentParser) -> list[tuple[Sequence[str], argparse.Action]]:
    return [(action.option_strings, action) for action in command._actions if action.option_strings]


def _bash(commands: Mapping[str, argparse.ArgumentParser]) -> str:
    cases = []
    for name, command in commands.items():
        words = [word for names, _ in _options_of(command) for word in names]
        for names, action in _options_of(command):
            if action.choices:
                choices = " ".join(map(str, action.choices))
                cases.append(f'        {name}:{f"|{name}:".join(names)}) words="{choices}"; typed=1 ;;')
        positional = next((a for a in command._actions if not a.option_strings and a.choices), None)
        if positional is not None and positional.choices is not None:
            words += map(str, positional.choices)
        cases.append(f'        {name}:*) words="{" ".join(words)}" ;;')
    lines = "\n".join(cases)
    return f"""_delta_sharing_spark() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} words="" typed=""
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{" ".join(commands)} --help --version" -- "$current"))
        return
    fi
    case "${{COMP_WORDS[1]}}:$previous" in
{lines}
    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
    if [ -z "$typed" ] && [ "${{current#-}}" = "$current" ]; then
        COMPREPLY+=($(compgen -f -- "$current"))
    fi
}}
complete -o filenames -F _delta_sharing_spark {PROGRAM}
"""


def _fish(commands: Mapping[str, argparse.ArgumentParser]) -> str:
    lines = []
    for name, command in commands.items():
        summary = shlex.quote(command.description or "")
        lines.append(f"complete -c {PROGRAM} -n __fish_use_subcommand -a {name} -d {summary}")
        for names, action in _options_of(command):
            flags = " ".join(f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in names)
            choices = f" -x -a {shlex.quote(' '.join(map(str, action.choices)))}" if action.choices else ""
            takes = " -r" if action.nargs != 0 and not choices else ""
            text = shlex.quote((action.help or "").replace("%(prog)s", PROGRAM))
            lines.append(
                f"complete -c {PROGRAM} -n '__fish_seen_subcommand_from {name}' {flags}{takes}{choices} -d {text}"
            )
    return "\n".join(lines) + "\n"
