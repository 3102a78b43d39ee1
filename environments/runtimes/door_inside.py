"""Runs inside a sandbox, in front of a program: forwards a loopback port to the door.

Enter: port, socket and command line. Leaves: the command's exit code. Invariant: the standard
library alone; the port is open before the command starts.
"""

import asyncio
import sys


async def main(port: int, door: str, command: list[str]) -> int:
    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, answers = await asyncio.open_unix_connection(door)
        await asyncio.gather(copy(reader, answers), copy(there, writer))

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
            writer.write_eof()
        except OSError:
            writer.close()

    server = await asyncio.start_server(pass_on, "127.0.0.1", port)
    try:
        child = await asyncio.create_subprocess_exec(*command)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 127
    ended = await child.wait()
    server.close()
    return ended if ended >= 0 else 128 - ended


if __name__ == "__main__":
    sys.exit(asyncio.run(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])))
