"""Images: a Vision Transformer, pixels or the tokens of its frozen layers, and auxiliary images."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from pfedseq.config import Config
from pfedseq.data.auxiliary import load_auxiliary
from pfedseq.data.config import DataConfig
from pfedseq.data.dataset import ExampleSet, FederatedData, ImageSet
from pfedseq.data.image_store import Report
from pfedseq.errors import InputError
from pfedseq.model.auxiliary import AuxiliaryExamples
from pfedseq.model.backbone import Backbone, check_image_size, load_backbone
from pfedseq.model.task import Examples
from pfedseq.workloads.images.auxiliary import auxiliary_images
from pfedseq.workloads.images.kind import ImageKind
from pfedseq.workloads.images.reader import ImageReader
from pfedseq.workloads.images.source import ImageSource, with_tokens
from pfedseq.workloads.images.variation import Variation
from pfedseq.workloads.kinds import Kind
from pfedseq.workloads.workload import Copy, Workload


@dataclass(frozen=True)
class ImageWorkload(Workload):
    """A frozen image encoder and images of any data set."""

    kind: ClassVar[Kind] = ImageKind()
    own_data: ClassVar[str] = "folder"

    @classmethod
    def check(cls, config: Config) -> None:
        """Refuse an image size that the backbone's patches do not divide."""
        cls.check_headline(config)
        check_image_size(config.model.backbone, config.data.side)

    @classmethod
    def agreed(cls, data: DataConfig) -> dict[str, Any]:
        """Image size and framing that all sites share."""
        framing = ("interpolation", "resize", "resize_to")
        return {"image_size": data.side} | data.model_dump(include=set(framing))

    @classmethod
    def load_encoder(cls, config: Config) -> Backbone:
        """The backbone for images of `data.image_size`."""
        section = config.model
        return load_backbone(
            section.backbone,
            config.data.side,
            section.mean,
            section.std,
            num_heads=section.num_heads,
            framing=config.data.framing,
        )

    @property
    def backbone(self) -> Backbone:
        """The frozen encoder."""
        encoder = self.model.encoder
        assert isinstance(encoder, Backbone)
        return encoder

    @property
    def notes(self) -> tuple[str, ...]:
        """The backbone's note, such as an assumption about a bare weights file."""
        return (self.backbone.note,) if self.backbone.note else ()

    def facts(self) -> dict[str, Any]:
        """The normalisation of the inputs, which must match a checkpoint's."""
        return {"mean": self.backbone.mean, "std": self.backbone.std}

    def examples(self, data: FederatedData, report: Report | None = None) -> ImageSource:
        """Pixels, or tokens of the frozen layers, computed if missing."""
        images = _images(data.examples)
        source = ImageSource(images, self.backbone.mean, self.backbone.std, self.model.device)
        prefix, training = self.model.prefix, self.config.training
        if training.augment:
            source = replace(source, variation=self._variation(source, data, report))
        if prefix is None:
            return source
        section, store = self.config.model, self.config.data.store
        return with_tokens(source, prefix, data.clients, section.tokens, store, report)

    def _variation(
        self, source: ImageSource, data: FederatedData, report: Report | None
    ) -> Variation:
        """The augmentation of training images; with frozen layers, `training.views` per image."""
        prefix, training, section = self.model.prefix, self.config.training, self.config.model
        varied = Variation(training.augment, self.config.run.seed)
        if prefix is None or section.tokens == "none":
            if training.views is not None:
                raise InputError(
                    "training.views stores tokens of the frozen layers below the first adapter, "
                    "but there are no such layers: remove it, and each image is augmented anew in "
                    "every round"
                )
            return varied if prefix is None else varied.through(prefix)
        if training.views is None:
            raise InputError(
                "training.augment changes images, but the stored tokens of the frozen layers below "
                "the first adapter belong to unchanged images: set training.views = 4 to store "
                "tokens of four augmented views of each image, adapter.layers = 'all', or "
                "model.tokens = 'none' to run the frozen layers in every round"
            )
        return varied.with_views(
            training.views, prefix, source, data.clients, section.tokens, self.config.data.store
        )

    def copy(self, data: FederatedData, examples: Examples, device: torch.device) -> Copy:
        """The model on another device; stored tokens are shared by all devices."""
        assert isinstance(examples, ImageSource)
        there = replace(self, model=self.model.on(device))
        if self.model.prefix is not None and self.config.model.tokens == "none":
            return Copy(there.model, there.examples(data))
        return Copy(there.model, replace(examples, device=device))

    def auxiliary(self, threads: int = 1) -> AuxiliaryExamples:
        """The auxiliary images; smaller ones are enlarged to the backbone's size when read."""
        size, seed = self.config.data.side, self.config.run.seed
        images = load_auxiliary(self.config.auxiliary, size, seed, self.config.data.framing)
        source = ImageSource(images, self.backbone.mean, self.backbone.std, self.model.device)
        return auxiliary_images(self.model, source, size, seed, threads)

    def reader(self, examples: ExampleSet) -> ImageReader:
        """A reader with the intensity window of the training images."""
        return ImageReader(self.backbone, _images(examples).window)


def _images(examples: ExampleSet) -> ImageSet:
    if not isinstance(examples, ImageSet):
        raise InputError(f"{examples.name} has {examples.unit}s, but images are expected")
    return examples
