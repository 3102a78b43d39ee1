"""The lake: where several machines share what a home has, a folder or a bucket on object storage.

Bytes enter under a key that had none; bytes leave by key. Object stores have neither rename nor
locks, so nothing is ever written over: a key is put if it is absent, and who comes second is told.
Invariant: what is there under a key is whole.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from flywheel import durable
from flywheel.errors import FlywheelError, UsageError
from storage.locks import lock

_WRITING = ".writing-"


class LakeError(FlywheelError):
    """The lake cannot be reached or does not let us: nothing is lost, try again."""


class Stored(NamedTuple):
    key: str
    size: int


class Lake(Protocol):
    url: str

    def put_new(self, key: str, data: bytes) -> bool:
        """Whether it was put; False = the key was there already, and stays as it was."""

    def get(self, key: str) -> bytes:
        """Raises: KeyError: nothing is there."""

    def list(self, prefix: str) -> Iterator[Stored]:
        """What lies under a prefix that ends in "/", in order of key."""

    def delete(self, key: str) -> None:
        """What is not there is not missed."""

    def tidy(self) -> None:
        """Removes what writers that were killed left half put, under no key yet."""


def open_lake(url: str) -> Lake:
    """A folder's path, `file://…`, or `s3://bucket/prefix` (endpoint, region and credentials by
    AWS's usual variables and files).

    Raises:
        UsageError: a kind of place that is not known.
    """
    scheme, found, rest = url.partition("://")
    if not found or scheme == "file":
        return FolderLake(Path(rest if found else url).resolve())
    if scheme == "s3" and rest.strip("/"):
        return ObjectLake(url.rstrip("/"))
    raise UsageError(f"FLYWHEEL_LAKE is {url!r}: a folder, or s3://bucket/prefix")


class FolderLake:
    def __init__(self, root: Path) -> None:
        self.url, self._root = str(root), root

    def put_new(self, key: str, data: bytes) -> bool:
        path = self._root / key
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=_WRITING)
        except (NotADirectoryError, FileExistsError, FileNotFoundError, PermissionError) as error:
            raise LakeError(
                f"the lake {self.url} is no folder that can be written ({error.strerror}): "
                "FLYWHEEL_LAKE names another"
            ) from error
        try:
            with durable.no_space(path), os.fdopen(handle, "wb") as file:
                lock(handle)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                try:
                    os.link(temporary, path)
                except FileExistsError:
                    return False
        finally:
            os.unlink(temporary)
        durable.sync_folder(path.parent)
        return True

    def get(self, key: str) -> bytes:
        try:
            return (self._root / key).read_bytes()
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            raise KeyError(key) from None

    def list(self, prefix: str) -> Iterator[Stored]:
        for path in sorted((self._root / prefix).rglob("*")):
            if path.is_file() and not path.name.startswith("."):
                with contextlib.suppress(FileNotFoundError):  # it went meanwhile
                    yield Stored(str(path.relative_to(self._root)), path.stat().st_size)

    def delete(self, key: str) -> None:
        (self._root / key).unlink(missing_ok=True)

    def tidy(self) -> None:
        for left in self._root.rglob(f"{_WRITING}*"):
            with contextlib.suppress(FileNotFoundError), left.open("rb") as file:
                # An empty one may be of somebody who has not locked it yet, and tells nothing.
                if os.fstat(file.fileno()).st_size and lock(file.fileno()):
                    left.unlink(missing_ok=True)


class ObjectLake:
    """On object storage, by fsspec. Putting if absent is S3's conditional write (If-None-Match)."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._root = url.partition("://")[2]
        self._opened: Any = None

    def put_new(self, key: str, data: bytes) -> bool:
        with self._reached():
            try:
                self._files.pipe_file(f"{self._root}/{key}", data, mode="create")
            except FileExistsError:
                return False
        return True

    def get(self, key: str) -> bytes:
        with self._reached():
            try:
                data: bytes = self._files.cat_file(f"{self._root}/{key}")
            except FileNotFoundError:
                raise KeyError(key) from None
        return data

    def list(self, prefix: str) -> Iterator[Stored]:
        with self._reached():
            self._files.invalidate_cache()
            found = self._files.find(f"{self._root}/{prefix}", detail=True)
        for path, about in sorted(found.items()):
            key = path.removeprefix(f"{self._root}/")
            # A key is any text there, but a path here: none leads out of the folder it stands for.
            if not {"", ".", ".."}.intersection(key.split("/")):
                yield Stored(key, int(about["size"]))

    def delete(self, key: str) -> None:
        with self._reached(), contextlib.suppress(FileNotFoundError):
            self._files.rm_file(f"{self._root}/{key}")

    def tidy(self) -> None:
        bucket, _, prefix = self._root.partition("/")
        with self._reached():
            said = self._files.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=prefix)
            for one in said.get("Uploads", ()):
                named = {"Key": one["Key"], "UploadId": one["UploadId"]}
                self._files.call_s3("abort_multipart_upload", Bucket=bucket, **named)

    @property
    def _files(self) -> Any:
        if self._opened is None:
            import fsspec

            limits = {"connect_timeout": 10, "read_timeout": 60, "retries": {"max_attempts": 4}}
            self._opened = fsspec.filesystem("s3", config_kwargs=limits, use_listings_cache=False)
        return self._opened

    @contextlib.contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except KeyError:
            raise
        except Exception as error:  # of botocore, aiohttp or the loop that fsspec runs
            said = f"{type(error).__name__}: {error}"
            raise LakeError(
                f"the lake {self.url} cannot be used ({said[:300]}): look at FLYWHEEL_LAKE, at the "
                "bucket and at AWS's variables; nothing is lost, run it again"
            ) from error
