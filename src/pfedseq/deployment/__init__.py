"""Flower deployment: clients on other machines, reached through a SuperLink; needs `flwr`.

`server.py` and `clients.py` are the server's side; `node.py`, `site_app.py`, `site.py` and
`site_folder.py` the sites' side; `messages.py` and `envelope.py` define the messages; `app/` is the
app for `flwr run`. `loopback.py`, `certificates.py` and `status.py` are for the operator.
"""
