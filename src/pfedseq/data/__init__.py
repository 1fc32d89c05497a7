"""Real data sets, their division among clients, and the store of prepared images.

The figure of `pfedseq data show` is in `pfedseq.data.distribution`, separate because it loads
matplotlib.
"""

from pfedseq.data.config import DataConfig
from pfedseq.data.dataset import ClientData, FederatedData, ImageSet
from pfedseq.data.loading import load_data, load_images
from pfedseq.data.preparing import Prepared, prepare_data
from pfedseq.data.registry import DATA_SETS

__all__ = [
    "DATA_SETS",
    "ClientData",
    "DataConfig",
    "FederatedData",
    "ImageSet",
    "Prepared",
    "load_data",
    "load_images",
    "prepare_data",
]
