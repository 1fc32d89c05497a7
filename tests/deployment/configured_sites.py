"""Sites in this process that answer as their SuperNodes would, from a node config."""

from pfedseq.deployment.envelope import Envelope
from pfedseq.deployment.site_app import answer_here
from pfedseq.deployment.site_config import SiteConfig
from tests.deployment.grid import Site


class ConfiguredSite(Site):
    """A site as its SuperNode would run it, answering from its node config."""

    def __init__(self, node, number):
        self.config = SiteConfig.read(node, {})
        super().__init__(self.config.name, self.config.folder, None, number)

    def reply(self, content):
        return answer_here(self.config, Envelope.of_records(content)).to_records()


def digits_sites(folder, count=2):
    return [
        ConfiguredSite(
            {"partition-id": k, "state": str(folder / f"site{k}"), "device": "cpu"}, k + 7
        )
        for k in range(count)
    ]
