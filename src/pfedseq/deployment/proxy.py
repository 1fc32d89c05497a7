"""The proxy in front of a SuperLink: an nginx that passes on only the sites' interface.

A SuperLink serves three interfaces on one port. `/v1/fleet/` is for the sites, which sign every
request with their keys; `/v1/control/` runs apps for any caller, and `/v1/runtime/` is for the
SuperLink's own processes. So the SuperLink listens on 127.0.0.1, and this proxy on the network.
"""

from __future__ import annotations

from pathlib import Path

from pfedseq.errors import InputError
from pfedseq.files import write_atomically

LARGEST_REQUEST = "64m"
"""nginx's limit on a request; Flower sends smaller chunks."""


def write_proxy(folder: Path, certificates: Path, listen: str, superlink: str) -> Path:
    """Write nginx.conf into the proxy's folder; returns its path."""
    folder, certificates = folder.absolute(), certificates.absolute()
    for file in ("ca.crt", "server.pem", "server.key"):
        if not (certificates / file).is_file():
            raise InputError(f"{certificates} has no {file}: create it with pfedseq flower keys")
    for address in (listen, superlink):
        host, colon, port = address.rpartition(":")
        if not colon or not host or not port.isdigit():
            raise InputError(f"{address} must be HOST:PORT")
    if any(c in f"{folder}{certificates}" for c in ' ;{}"\n'):
        raise InputError("nginx does not accept paths with blanks, quotes, braces or semicolons")
    path = folder / "nginx.conf"
    write_atomically(path, _config(folder, certificates, listen, superlink))
    return path


def _config(folder: Path, certificates: Path, listen: str, superlink: str) -> str:
    temporary = "\n".join(
        f"    {kind}_temp_path {folder}/temporary-{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    return f"""\
# Written by `pfedseq flower proxy`. Only requests to /v1/fleet/ reach the SuperLink.
worker_processes auto;
pid {folder}/nginx.pid;
error_log {folder}/error.log;

events {{
    worker_connections 1024;
}}

http {{
    access_log {folder}/access.log;
{temporary}
    server_tokens off;
    limit_conn_zone $binary_remote_addr zone=sites:1m;

    server {{
        listen {listen} ssl;
        ssl_certificate {certificates}/server.pem;
        ssl_certificate_key {certificates}/server.key;
        ssl_protocols TLSv1.2 TLSv1.3;
        client_max_body_size {LARGEST_REQUEST};
        client_header_timeout 10s;
        client_body_timeout 60s;
        limit_conn sites 64;

        # The operator registers the sites, and no app is sent to them.
        location = /v1/fleet/register-node {{
            return 403;
        }}
        location = /v1/fleet/get-fab {{
            return 403;
        }}
        location /v1/fleet/ {{
            proxy_pass https://{superlink};
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header X-Forwarded-For $remote_addr;
            proxy_ssl_trusted_certificate {certificates}/ca.crt;
            proxy_ssl_verify on;
            proxy_ssl_name localhost;  # nginx compares names, not addresses
            proxy_read_timeout 120s;
            # No temporary files, which nginx's workers may not be able to write.
            proxy_request_buffering off;
            proxy_max_temp_file_size 0;
        }}
        location / {{
            return 403;
        }}
    }}
}}
"""
