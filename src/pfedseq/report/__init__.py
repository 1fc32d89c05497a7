"""What a person sees: progress while it runs, tables and figures when it is done."""
