"""Answers a message at a site, in pfedseq's node or in Flower's client process.

PyTorch is imported only when an answer is computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from pfedseq.deployment.envelope import Envelope
from pfedseq.deployment.site_config import SiteConfig


def answered(content: Any, node: Mapping[str, Any], run: Mapping[str, Any]) -> Any:
    """The content of the reply to a message's content, in Flower's client process."""
    return answer_here(SiteConfig.read(node, run), Envelope.of_records(content)).to_records()


def answer_here(site: SiteConfig, envelope: Envelope) -> Envelope:
    """A site's reply to a request."""
    from pfedseq.deployment.site import equip
    from pfedseq.deployment.site_folder import SiteFolder, answer_envelope

    return answer_envelope(envelope, site.name, SiteFolder(site.folder), partial(equip, site))
