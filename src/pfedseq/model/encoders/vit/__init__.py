"""Vision Transformers of transformers' `model_type` `vit`, with all optimisations."""
