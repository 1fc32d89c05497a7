"""Flower: clients on other machines, reached through a SuperLink; needs `flwr`.

`server.py` and `clients.py` are the server's side; `node.py`, `site_app.py`, `site.py` and
`site_folder.py` the sites'; `messages.py` and `envelope.py` what passes between them; `app/` is
what `flwr run` takes. `loopback.py`, `certificates.py` and `status.py` are for the operator.
"""
