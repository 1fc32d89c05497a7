"""Real data sets, their division among clients, and the store of prepared images."""

from pfedseq.data.config import DataConfig
from pfedseq.data.dataset import ClientData, FederatedData, ImageSet
from pfedseq.data.loading import load_data

__all__ = ["ClientData", "DataConfig", "FederatedData", "ImageSet", "load_data"]
