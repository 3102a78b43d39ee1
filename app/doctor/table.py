"""The table of checks, in the order in which they are told. A new one is a line here."""

from app.doctor import (
    answering,
    deployed,
    doors,
    judges,
    leftovers,
    machine,
    ports,
    programs,
    projects,
    schedule,
    store,
)
from app.doctor.finding import Check

CHECKS: dict[str, Check] = {
    "python": Check(machine.python),
    "packages": Check(machine.packages),
    "vllm": Check(machine.vllm),
    "home": Check(machine.home),
    "disk": Check(machine.disk),
    "memory": Check(machine.memory),
    "clock": Check(machine.clock),
    "ports": Check(ports.ports),
    "exposure": Check(ports.exposure),
    "keys": Check(doors.keys),
    "people": Check(doors.people),
    "projects": Check(projects.projects),
    "environments": Check(projects.environments, limit_s=40, apart=True),
    "models": Check(projects.models, limit_s=30, apart=True, deep_limit_s=300),
    "judges": Check(judges.judges, limit_s=30),
    "sandbox": Check(programs.sandbox, limit_s=30),
    "server": Check(answering.server),
    "engine": Check(answering.engines, limit_s=30),
    "routing": Check(deployed.routing, limit_s=30),
    "registry": Check(deployed.registry, limit_s=30, deep_limit_s=120),
    "store": Check(store.store, limit_s=30, apart=True),
    "inbox": Check(store.waiting, limit_s=30, deep_limit_s=300),
    "quarantine": Check(store.quarantine),
    "prefect": Check(schedule.prefect, limit_s=30, apart=True),
    "leftovers": Check(leftovers.leftovers),
    "processes": Check(leftovers.orphans),
}
"""Name -> check."""
