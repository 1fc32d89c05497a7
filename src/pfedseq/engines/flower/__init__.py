"""The Flower engine: clients on other machines, reached through a SuperLink; needs `flwr`.

`clients.py` is the server's side, `site.py` the clients', `records.py` what passes between them.
"""
