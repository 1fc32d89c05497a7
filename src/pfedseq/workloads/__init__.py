"""What an example is: one folder for each modality."""
