"""Vision Transformers as transformers calls them `vit`, with all fast paths."""
