"""The system calls that no program in a sandbox may make, as the kernel's filter takes them.

Enter: nothing; leaves: a filter in classic BPF, or nothing on a machine whose numbers are not known
here. Invariant: what is refused is what looks into other processes (a graded program shares its
user with the program that grades it), makes namespaces, or takes memory that no process shows.
"""

import errno
import platform
import struct
from functools import cache

_X86, _ARM = "x86_64", "aarch64"
_ARCHITECTURE = {_X86: 0xC000003E, _ARM: 0xC00000B7}
_DENIED = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_by_handle_at": (304, 265),
    "syslog": (103, 116),
    "kexec_load": (246, 104),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
}
"""Name -> number on x86-64 and on ARM; answered "not permitted"."""
_UNKNOWN = {
    "clone3": (435, 435),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
}
"""Answered "no such call", upon which programs take the older way. The flags of clone3 lie in
memory, where a filter cannot read them."""
_CLONE = (56, 220)
_NAMESPACES = 0x7E020000
"""Flags of clone that make a namespace."""
_LOAD, _EQUAL, _ANY, _AT_LEAST, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000
_NUMBER_AT, _ARCHITECTURE_AT, _FLAGS_AT = 0, 4, 16
_X32 = 0x40000000


@cache
def denials() -> bytes:
    """The filter; empty = this machine's architecture is not known here."""
    machine = platform.machine()
    if machine not in _ARCHITECTURE:
        return b""
    column = (_X86, _ARM).index(machine)
    steps = [
        _step(_LOAD, _ARCHITECTURE_AT),
        _step(_EQUAL, _ARCHITECTURE[machine], 1, 0),
        _refuse(errno.ENOSYS),
        _step(_LOAD, _NUMBER_AT),
    ]
    if machine == _X86:
        steps += [_step(_AT_LEAST, _X32, 0, 1), _refuse(errno.ENOSYS)]
    for table, code in ((_UNKNOWN, errno.ENOSYS), (_DENIED, errno.EPERM)):
        for numbers in table.values():
            steps += [_step(_EQUAL, numbers[column], 0, 1), _refuse(code)]
    steps += [
        _step(_EQUAL, _CLONE[column], 0, 3),
        _step(_LOAD, _FLAGS_AT),
        _step(_ANY, _NAMESPACES, 0, 1),
        _refuse(errno.EPERM),
        _step(_RETURN, _ALLOW),
    ]
    return b"".join(steps)


def _step(code: int, operand: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, operand)


def _refuse(code: int) -> bytes:
    return _step(_RETURN, _REFUSE | code)
