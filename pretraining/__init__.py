"""How the demo's backbone was made: a small ViT pretrained on images drawn by this package."""
