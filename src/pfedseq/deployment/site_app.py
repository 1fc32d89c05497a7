"""A Flower ClientApp's one function: answer a message in the site's worker, or here.

Imported by every process that Flower starts for a message, so PyTorch is imported only where the
answer is computed.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from functools import partial
from typing import Any

from pfedseq.deployment.envelope import Envelope
from pfedseq.deployment.site_config import SiteConfig
from pfedseq.deployment.warm import ask_worker


def answered(content: Any, node: Mapping[str, Any], run: Mapping[str, Any]) -> Any:
    """The content of the reply to a message's content."""
    site, envelope = SiteConfig.read(node, run), Envelope.of_records(content)
    if site.warm > 0 and hasattr(socket, "AF_UNIX"):
        return ask_worker(envelope, node, site.folder, site.warm).to_records()
    return answer_here(site, envelope).to_records()


def answer_here(site: SiteConfig, envelope: Envelope) -> Envelope:
    """In this process."""
    from pfedseq.deployment.site import equip
    from pfedseq.deployment.site_folder import SiteFolder, answer_envelope

    return answer_envelope(envelope, site.name, SiteFolder(site.folder), partial(equip, site))
