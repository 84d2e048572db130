"""A daemon that tells the real `docker` of one container, over a socket in a folder; of no other it knows."""

from __future__ import annotations

import http.server
import json
import socketserver
import sys

ID = "0123456789abcdef" * 4
TOLD = {
    "Id": ID,
    "Name": "/boring_turing",
    "Image": f"sha256:{ID}",
    "State": {"Status": "running"},
    "HostConfig": {},
    "Config": {
        "Image": "pytorch/pytorch:2.4.0",
        "Env": ["PATH=/usr/bin", "API_KEY=hunter2", "USERS_PASSWORD=hunter2", "USER=Bob", "GPUBOARD_USER=alice"],
        "Labels": {
            "maintainer": "hunter2",
            "io.kubernetes.pod.name": "train-0",
            "io.kubernetes.pod.namespace": "ml",
        },
    },
    "Mounts": [
        {"Type": "bind", "Source": "/home/bob/x", "Destination": "/x"},
        {"Type": "volume", "Name": "v", "Source": "/var/lib/docker/volumes/v/_data", "Destination": "/v"},
    ],
}


class Daemon(socketserver.ThreadingUnixStreamServer):
    """On a socket that is a file."""

    daemon_threads = True


class Answer(http.server.BaseHTTPRequestHandler):
    """What the daemon answers."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        code, body = 404, json.dumps({"message": f"No such container: {self.path.split('/')[-2]}"})
        if self.path.endswith("/_ping"):
            code, body = 200, "OK"
        elif f"/containers/{ID[:12]}" in self.path:
            code, body = 200, json.dumps(TOLD)
        self.send_response(code)
        self.send_header("Api-Version", "1.41")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    Daemon(sys.argv[1], Answer).serve_forever()
