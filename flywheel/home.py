"""Where everything of one installation lies: the paths under FLYWHEEL_HOME, and nothing else."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Home:
    root: Path
    lake: str | None = None
    """Where it shares what it has: a folder or s3://bucket/prefix. None = nowhere."""
    catalog: str | None = None
    """PostgreSQL's URL, where the database's tables lie in the lake and are catalogued there.
    None = one file in the home."""

    @property
    def database(self) -> Path:
        return self.root / "flywheel.duckdb"

    @property
    def inbox(self) -> Path:
        """Sealed segments that wait for the committer."""
        return self.root / "inbox"

    @property
    def journal(self) -> Path:
        """The gateway's append-only files, sealed into segments."""
        return self.root / "journal"

    @property
    def raw(self) -> Path:
        """Raw bytes by digest, compressed."""
        return self.root / "raw"

    @property
    def quarantine(self) -> Path:
        return self.root / "quarantine"

    @property
    def imports(self) -> Path:
        """What each imported chunk of a file gave, by the name of its segment."""
        return self.root / "imports"

    @property
    def datasets(self) -> Path:
        return self.root / "datasets"

    @property
    def pulls(self) -> Path:
        """How far each pull from another platform came, one file a project there."""
        return self.root / "pulls"

    @property
    def pools(self) -> Path:
        """Rows of curations, rebuildings and publishings under way, one folder each, gone when they
        end."""
        return self.root / "pools"

    @property
    def runs(self) -> Path:
        """One folder a run: its job, metrics, checkpoints, adapter, result."""
        return self.root / "runs"

    @property
    def evals(self) -> Path:
        """One folder an evaluation run (`flywheel eval`): its configuration, log and report."""
        return self.root / "evals"

    @property
    def routing(self) -> Path:
        """What serves: the authority."""
        return self.root / "routing.json"

    @property
    def promotions(self) -> Path:
        """Intents of promotions under way, one file a project."""
        return self.root / "promotions"

    @property
    def releases(self) -> Path:
        """What guard rails counted of the canary that runs, one file a project."""
        return self.root / "releases"

    @property
    def server(self) -> Path:
        """The running server's record: pid, URLs, projects."""
        return self.root / "server.json"

    @property
    def keys(self) -> Path:
        """Hashes of the keys that were issued here, and what each allows."""
        return self.root / "keys.json"

    @property
    def admission(self) -> Path:
        """What each key and project used lately: shared by the gateway's processes."""
        return self.root / "admission"

    @property
    def responses(self) -> Path:
        """What answers left for requests that name them by `previous_response_id`."""
        return self.root / "responses.sqlite"

    @property
    def stitching(self) -> Path:
        """Which answer ended which history: what conversations are known by."""
        return self.root / "stitching"

    @property
    def redaction_key(self) -> Path:
        """Makes other names of redacted ones, the same for the same."""
        return self.root / "redaction.key"

    @property
    def erasure_key(self) -> Path:
        """By which what was erased is known again without being told."""
        return self.root / "erasure.key"

    @property
    def erasing(self) -> Path:
        """Erasures under way, one file each; it goes when nothing is left to be found."""
        return self.root / "erasing"

    @property
    def repeats(self) -> Path:
        """What the gateway was told lately: one SQLite file, see `storage.repeats`."""
        return self.root / "repeats.sqlite"

    @property
    def cache(self) -> Path:
        """What can be made again: environments of grader scripts."""
        return self.root / "cache"

    @property
    def engine(self) -> Path:
        """What a running engine needs: sockets, caches, copies of the adapters it has."""
        return self.root / "engine"

    @property
    def turns(self) -> Path:
        """Turns under way, one file a project."""
        return self.root / "turns"

    @property
    def projects(self) -> Path:
        """Where each project's folder was last, one file a project: see `flywheel.known`."""
        return self.root / "projects"

    @property
    def once(self) -> Path:
        """One-time tokens that were spent: see `flywheel.once`."""
        return self.root / "once"

    @property
    def leases(self) -> Path:
        """Who reviews what right now."""
        return self.root / "leases"

    @property
    def actions(self) -> Path:
        """What people started from the dashboard, one folder each."""
        return self.root / "actions"

    @property
    def judge(self) -> Path:
        """What judges said and what they cost: one SQLite file."""
        return self.root / "judge.sqlite"

    @property
    def embeddings(self) -> Path:
        """Signs of texts' embeddings, by digests of the texts: one SQLite file."""
        return self.root / "embeddings.sqlite"

    @property
    def locks(self) -> Path:
        return self.root / "locks"

    @property
    def mlflow(self) -> Path:
        return self.root / "mlflow"

    @property
    def prefect(self) -> Path:
        return self.root / "prefect"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def relative(self, path: Path) -> str:
        """`path` as records name it: relative to the home, so that a home can be moved."""
        return str(path.resolve().relative_to(self.root.resolve()))

    def path(self, relative: str) -> Path:
        return self.root / relative
