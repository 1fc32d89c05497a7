import numpy as np
import pytest
from data_samples import copy_zip

from pfedseq.data import DataConfig, load_data
from pfedseq.data.location import locate
from pfedseq.data.pacs import open_pacs
from pfedseq.errors import InputError


@pytest.fixture
def sample(shared_data):
    return shared_data / "pacs/pacs_128.zip"


def test_the_whole_data_set_is_read_by_domain(sample):
    source = open_pacs(locate(str(sample)))
    assert source.owner_names == ("art_painting", "cartoon", "photo", "sketch")
    assert np.bincount(source.owners).tolist() == [2_048, 2_344, 1_670, 3_929]
    assert source.class_names[-1] == "person"
    assert source.notes == ()


def test_domains_can_be_split_into_several_clients(sample, tmp_path):
    few = copy_zip(sample, tmp_path / "few.zip", keep=lambda name: name.endswith("1.jpg"))
    config = DataConfig(
        name="pacs",
        source=str(few),
        image_size=16,
        store=tmp_path / "store",
        split_owners=3,
        max_images_per_client=40,
    )
    data = load_data(config, seed=0)
    assert [c.name for c in data.clients][:4] == [
        "art_painting-0",
        "art_painting-1",
        "art_painting-2",
        "cartoon-0",
    ]
    assert {len(c.train) + len(c.validation) + len(c.test) for c in data.clients} == {40}
    owners = data.examples.owners
    assert {int(owners[i]) for i in data.clients[4].train} == {1}


def test_broken_copies_are_one_sentence(sample, tmp_path):
    no_photos = copy_zip(sample, tmp_path / "1.zip", keep=lambda name: "/photo/" not in name)
    with pytest.raises(InputError, match="has no images of PACS's domain photo"):
        open_pacs(locate(str(no_photos)))
    strange = {"PACS/photo/cat/1.jpg": b"x"}
    wrong = copy_zip(
        sample, tmp_path / "2.zip", change=strange, keep=lambda n: n.endswith("01.jpg")
    )
    with pytest.raises(InputError, match="has the class 'cat', which PACS does not have"):
        open_pacs(locate(str(wrong)))
