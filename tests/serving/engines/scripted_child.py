"""A child with an engine's routes, for supervision to be attacked: what it says of tokens is the
number that an adapter's file holds, and what it does while it loads one the file's word: `dies`."""

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from flywheel.children import follow_parent

SAYS = {"base": -1.0}


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_: Any) -> None: ...

    def do_GET(self) -> None:
        found: dict[str, Any] = {"status": "ok"}
        if self.path == "/v1/models":
            found = {"data": [{"id": name} for name in SAYS]}
        self._say(200, found)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path == "/v1/load_lora_adapter":
            self._load(body["lora_name"], Path(body["lora_path"]))
        elif self.path == "/v1/unload_lora_adapter":
            self._say(200 if SAYS.pop(body["lora_name"], None) is not None else 404, {})
        else:
            self._say(200, {"choices": list(self._scored(body))})

    def _load(self, name: str, folder: Path) -> None:
        try:
            text = (folder / "adapter_model.safetensors").read_text()
        except OSError as error:
            return self._say(400, {"error": {"message": str(error)}})
        if text == "dies":
            os._exit(9)
        SAYS[name] = float(text)
        return self._say(200, {})

    def _scored(self, body: dict[str, Any]) -> Any:
        says = SAYS[body["model"]]
        for index, ids in enumerate(body["prompt"]):
            yield {"index": index, "prompt_logprobs": [{str(t): {"logprob": says}} for t in ids]}

    def _say(self, status: int, content: Any) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


if __name__ == "__main__":
    follow_parent()
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever(0.05)
